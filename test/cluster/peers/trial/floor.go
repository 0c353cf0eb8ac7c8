package trial

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
	"sluice/test/cluster/peers/client"
	"sluice/test/cluster/peers/figures"
	"sluice/test/cluster/peers/load"
)

// Floor measures the lower bounds for any proxy at the size of the load.
func (b *Bench) Floor(ctx context.Context) figures.Floor {
	f := figures.Floor{Size: b.Load.Size, Date: time.Now().UTC().Truncate(time.Second)}
	site, err := b.newSite(ctx)
	if err == nil {
		err = errors.Join(
			b.measureDirectTraffic(ctx, site, &f), b.measureKernelWrites(ctx, site, &f), b.measureWatch(ctx, site, &f), site.close(ctx))
	}
	summary := fmt.Sprintf("change to traffic %v, of it the kernel's %v, a connection %v; cold start %v: list %v, write %v, ask all %v",
		f.Change(0), f.Element, f.Connect, f.ColdStart(), f.List, f.Write, f.Sweep)
	if err != nil {
		f.Missing = err.Error()
		summary = f.Missing
	}
	b.Log(fmt.Sprintf("floor %v: %s", f.Size, summary))
	return f
}

// measureDirectTraffic connects directly to as many endpoints as there are Services, and measures
// connections on a node without rules.
func (b *Bench) measureDirectTraffic(ctx context.Context, s *site, f *figures.Floor) error {
	var targets []client.Target
	for i := range b.Load.Size.Services {
		targets = append(targets, client.Target{Addr: netip.AddrPortFrom(load.Endpoint(i, 0), load.TargetPort)})
	}
	began := time.Now()
	answers, err := s.client.Await(ctx, targets)
	if err != nil {
		return err
	}
	if answers.Count < len(targets) {
		return fmt.Errorf("%d of %d endpoints answered: %w", answers.Count, len(targets), ctx.Err())
	}
	f.Sweep = figures.SecondsOf(time.Since(began))
	bare, err := b.connections(ctx, s, connectionKind{proxy.TCP, load.DataTargets()}, connectionKind{proxy.UDP, load.DataTargets()})
	if err != nil {
		return err
	}
	f.TCP, f.UDP = bare[0].figure(), bare[1].figure()
	f.Connect = f.TCP.P50
	return nil
}

// measureKernelWrites writes as many elements as a proxy needs at least, and then repeatedly one
// change of an endpoint.
func (b *Bench) measureKernelWrites(ctx context.Context, s *site, f *figures.Floor) error {
	const large, times = 1 << 14, 300 // elements of a batch; changes
	var conn *nft.Conn
	err := s.node.Host.Do(func() (err error) {
		conn, err = nft.Open()
		return err
	})
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer conn.Close()
	table := nft.Table{Family: nft.IP, Name: "floor"}
	set := &nft.Set{
		Table: table, Name: "floor",
		Key:  []nft.Type{nft.IPv4Addr, nft.Proto, nft.Port, nft.Mark},
		Data: []nft.Type{nft.IPv4Addr, nft.Port},
	}
	var batch nft.Batch
	commit := func(what string) (figures.Seconds, error) {
		began := time.Now()
		if err := conn.Commit(ctx, &batch); err != nil {
			return 0, fmt.Errorf("%s: %w", what, err)
		}
		batch.Reset()
		return figures.SecondsOf(time.Since(began)), nil
	}
	batch.AddTable(table)
	batch.AddSet(set)
	if _, err := commit("make a set"); err != nil {
		return err
	}
	count := b.Load.Size.Services * (b.Load.Size.Endpoints + 1)
	began := time.Now()
	for i := range count {
		if batch.AddElement(set, element(i, i)); len(batch.Ops) == large || i == count-1 {
			if _, err := commit("write elements"); err != nil {
				return err
			}
		}
	}
	f.Write = figures.SecondsOf(time.Since(began))
	var took []figures.Seconds
	for i := range times {
		batch.DeleteElement(set, element(0, i-min(i, 1)))
		batch.AddElement(set, element(0, i))
		one, err := commit("replace an element")
		if err != nil {
			return err
		}
		took = append(took, one)
	}
	f.Element = figures.Percentile(took, 50)
	return nil
}

// element returns element i of the set.
func element(i, value int) nft.Element {
	key, data := make([]byte, 16), make([]byte, 8)
	binary.BigEndian.PutUint32(key, uint32(i))
	binary.BigEndian.PutUint32(data, uint32(value))
	return nft.Element{Key: string(key), Data: string(data)}
}

// measureWatch lists all objects once, and then receives events of changes.
func (b *Bench) measureWatch(ctx context.Context, s *site, f *figures.Floor) error {
	api, err := kubernetes.NewForConfig(load.Protobuf(b.Cluster.Admin))
	if err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	all := metav1.ListOptions{ResourceVersion: "0"} // from the API server's cache, as informers do
	began := time.Now()
	if _, err := api.CoreV1().Services(metav1.NamespaceAll).List(ctx, all); err != nil {
		return fmt.Errorf("list Services: %w", err)
	}
	slices := api.DiscoveryV1().EndpointSlices(metav1.NamespaceAll)
	list, err := slices.List(ctx, all)
	if err != nil {
		return fmt.Errorf("list EndpointSlices: %w", err)
	}
	f.List = figures.SecondsOf(time.Since(began))
	w, err := slices.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return fmt.Errorf("watch EndpointSlices: %w", err)
	}
	w = watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		s, ok := e.Object.(*discoveryv1.EndpointSlice)
		return e, ok && load.IsProbe(s)
	})
	defer w.Stop()
	watcher, err := b.Cluster.StartProgram(s.node, "watcher", b.Watcher, "--watch", s.user.Kubeconfig())
	if err != nil {
		return err
	}
	defer watcher.Kill()
	if err := watcher.Settle(ctx, time.Second, 0, time.Minute); err != nil { // until it has received everything
		return err
	}
	for _, rate := range b.Limits.Rates {
		// A watch is not periodic, so the phase of changes does not matter.
		s := sampler{Bench: b, samples: min(b.Limits.Samples, 30), await: func(ctx context.Context, endpoint netip.Addr) (time.Time, error) {
			return awaitEvent(ctx, w, endpoint)
		}}
		if rate == 0 {
			s.samples = min(b.Limits.Samples, 10) // with the same intervals as for proxies
		}
		c, err := s.run(ctx, rate, watcher)
		if err != nil {
			return err
		}
		f.Watches = append(f.Watches, c)
	}
	return nil
}

// awaitEvent returns when a watch reports that the Service Probe has an endpoint.
func awaitEvent(ctx context.Context, w watch.Interface, endpoint netip.Addr) (time.Time, error) {
	for {
		select {
		case <-ctx.Done():
			return time.Time{}, errors.New("wait for an event: none came")
		case e, ok := <-w.ResultChan():
			if !ok {
				return time.Time{}, errors.New("wait for an event: the watch has ended")
			}
			if e.Object.(*discoveryv1.EndpointSlice).Endpoints[0].Addresses[0] == endpoint.String() {
				return time.Now(), nil
			}
		}
	}
}
