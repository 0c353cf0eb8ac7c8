package trial

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
	"sluice/test/cluster/peers/figures"
	"sluice/test/cluster/peers/load"
	"sluice/test/cluster/process"
)

// floorSamples is how many changes a bare watch hears of while others happen,
// floorSamplesIdle while none do: these are as far apart as those of proxies.
const floorSamples, floorSamplesIdle = 30, 10

// Floor measures what no proxy can be quicker than at the size of the load.
func (b *Bench) Floor(ctx context.Context) figures.Floor {
	f := figures.Floor{Size: b.Load.Size, Date: time.Now().UTC().Truncate(time.Second)}
	site, err := b.newSite(ctx)
	if err == nil {
		err = errors.Join(
			b.floorOfTraffic(ctx, site, &f), b.floorOfKernel(ctx, site, &f), b.floorOfAPI(ctx, site, &f), site.close(ctx))
	}
	if err != nil {
		f.Missing = err.Error()
		b.Say(fmt.Sprintf("floor %v: %v", f.Size, err))
		return f
	}
	change := f.Change(0)
	b.Say(fmt.Sprintf("floor %v: change to traffic %v, of it the kernel's %v, a connection %v; cold start %v: list %v, write %v, ask all %v",
		f.Size, change, f.Element, f.Connect, f.ColdStart(), f.List, f.Write, f.Sweep))
	return f
}

// floorOfTraffic asks as many endpoints directly as there are Services, and
// makes connections on a node without rules.
func (b *Bench) floorOfTraffic(ctx context.Context, s *site, f *figures.Floor) error {
	targets := b.targets()
	for i := range targets {
		targets[i] = load.Direct(i)
	}
	began := time.Now()
	answers, err := s.client.Await(ctx, targets)
	if err != nil {
		return err
	}
	if answers.All.IsZero() {
		return fmt.Errorf("%d of %d endpoints answered: %w", answers.Count, len(targets), ctx.Err())
	}
	f.Sweep = figures.SecondsOf(answers.All.Sub(began))
	var tcp, udp tally
	for range rounds {
		err := errors.Join(
			s.round(ctx, proxy.TCP, load.DataTargets(), b.Limits.Burst, &tcp),
			s.round(ctx, proxy.UDP, load.DataTargets(), b.Limits.Burst, &udp))
		if err != nil {
			return err
		}
	}
	f.TCP = figures.Bare{PerSecond: tcp.perSecond(), Latency: tcp.latency()}
	f.UDP = figures.Bare{PerSecond: udp.perSecond(), Latency: udp.latency()}
	f.Connect = f.TCP.P50
	return nil
}

// floorOfKernel writes as many elements as a proxy would at least, and then one
// change of an endpoint again and again.
func (b *Bench) floorOfKernel(ctx context.Context, s *site, f *figures.Floor) error {
	var conn *nft.Conn
	err := s.node.Host.Do(func() error {
		var err error
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
	batch.AddTable(table)
	batch.AddSet(set)
	if err := conn.Commit(ctx, &batch); err != nil {
		return fmt.Errorf("make a set: %w", err)
	}
	count := b.Load.Size.Services * (b.Load.Size.Endpoints + 1)
	began := time.Now()
	if err := fill(ctx, conn, set, count); err != nil {
		return err
	}
	f.Write = figures.SecondsOf(time.Since(began))
	if f.Element, err = replaceElements(ctx, conn, set); err != nil {
		return err
	}
	batch.Reset()
	batch.DeleteTable(table)
	return conn.Commit(ctx, &batch)
}

// element is number i of a set.
func element(i, value int) nft.Element {
	key, data := make([]byte, 16), make([]byte, 8)
	binary.BigEndian.PutUint32(key, uint32(i))
	binary.BigEndian.PutUint32(data, uint32(value))
	return nft.Element{Key: string(key), Data: string(data)}
}

// fill writes elements in batches.
func fill(ctx context.Context, conn *nft.Conn, set *nft.Set, count int) error {
	const large = 1 << 20 // bytes
	var batch nft.Batch
	for i := range count {
		batch.AddElement(set, element(i, i))
		if batch.Bytes() > large || i == count-1 {
			if err := conn.Commit(ctx, &batch); err != nil {
				return fmt.Errorf("write elements: %w", err)
			}
			batch.Reset()
		}
	}
	return nil
}

// replaceElements replaces one element by another, again and again, and returns
// how long one change takes.
func replaceElements(ctx context.Context, conn *nft.Conn, set *nft.Set) (figures.Seconds, error) {
	const times = 300
	var batch nft.Batch
	var took []figures.Seconds
	for i := range times {
		batch.Reset()
		batch.DeleteElement(set, element(0, i-min(i, 1)))
		batch.AddElement(set, element(0, i))
		began := time.Now()
		if err := conn.Commit(ctx, &batch); err != nil {
			return 0, fmt.Errorf("replace an element: %w", err)
		}
		took = append(took, figures.SecondsOf(time.Since(began)))
	}
	return figures.Percentile(took, 50), nil
}

// floorOfAPI reads all objects once, and receives events of changes.
func (b *Bench) floorOfAPI(ctx context.Context, s *site, f *figures.Floor) error {
	client, err := kubernetes.NewForConfig(load.Protobuf(b.Cluster.Admin))
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	all := metav1.ListOptions{ResourceVersion: "0"} // from the API server's cache, as informers do
	began := time.Now()
	if _, err := client.CoreV1().Services(metav1.NamespaceAll).List(ctx, all); err != nil {
		return fmt.Errorf("list Services: %w", err)
	}
	list, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll).List(ctx, all)
	if err != nil {
		return fmt.Errorf("list EndpointSlices: %w", err)
	}
	f.List = figures.SecondsOf(time.Since(began))
	w, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll).Watch(ctx,
		metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return fmt.Errorf("watch EndpointSlices: %w", err)
	}
	defer w.Stop()
	events := make(chan event, 2*floorSamples)
	go func() {
		defer close(events)
		for e := range w.ResultChan() {
			now := time.Now()
			if s, ok := e.Object.(*discoveryv1.EndpointSlice); ok && load.IsProbe(s) {
				events <- event{now, s.Endpoints[0].Addresses[0]}
			}
		}
	}()
	bare, err := b.startWatcher(ctx, s)
	if err != nil {
		return err
	}
	if bare != nil {
		defer bare.Kill()
	}
	for _, rate := range b.Limits.Rates {
		watch, err := b.watch(ctx, rate, events, bare)
		if err != nil {
			return err
		}
		f.Watches = append(f.Watches, watch)
	}
	return nil
}

// event is a change of the Service Probe at the client that only watches.
type event struct {
	at      time.Time
	address string
}

// startWatcher starts the process that only watches, if there is one, and waits
// until it has all that there is.
func (b *Bench) startWatcher(ctx context.Context, s *site) (*process.Process, error) {
	if b.Watcher == "" {
		return nil, nil
	}
	p, err := b.Cluster.StartProgram(s.node, "watcher", b.Watcher, s.user.Kubeconfig())
	if err != nil {
		return nil, err
	}
	return p, restful(ctx, p)
}

// restful waits until a process has not used a processor for a while.
func restful(ctx context.Context, p *process.Process) error {
	const still, look = 5, 200 * time.Millisecond
	var last time.Duration
	for n := 0; n < still; n++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(look):
		}
		now, err := p.CPU()
		if err != nil {
			return err
		}
		if now != last {
			n = 0
		}
		last = now
	}
	return nil
}

// watch takes the samples at one rate of other changes. The process, if there
// is one, hears of all of them too.
func (b *Bench) watch(ctx context.Context, rate int, events <-chan event, bare *process.Process) (figures.Change, error) {
	const limit = 30 * time.Second
	w := figures.Change{Rate: rate}
	churn := b.Load.Churn(ctx, rate)
	wanted := min(b.Limits.Samples, floorSamplesIdle)
	if rate > 0 {
		wanted = min(b.Limits.Samples, floorSamples)
		time.Sleep(warmUp)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var before, after time.Duration
	var err error
	if bare != nil {
		before, err = bare.CPU()
	}
	others, began := churn.Count(), time.Now()
	for len(w.Samples) < wanted && err == nil {
		var step load.Step
		var at time.Time
		if step, at, err = b.hear(ctx, events); err == nil {
			w.Samples = append(w.Samples, figures.SecondsOf(at.Sub(step.Returned)))
			w.Calls = append(w.Calls, figures.SecondsOf(step.Returned.Sub(step.Sent)))
			time.Sleep(floorGap(rate))
		}
	}
	if bare != nil && err == nil {
		after, err = bare.CPU()
		w.CPU = figures.SecondsOf(after - before)
	}
	w.Updates = len(w.Samples) + int(churn.Count()-others)
	w.Achieved = float64(churn.Count()-others) / time.Since(began).Seconds()
	return w, errors.Join(err, churn.Stop())
}

// floorGap is the time between two changes. A watch has no period of its own, so
// the phase does not matter while others change.
func floorGap(rate int) time.Duration {
	if rate == 0 {
		return idleGap
	}
	return busyGap
}

// hear makes a change and returns when its event came.
func (b *Bench) hear(ctx context.Context, events <-chan event) (load.Step, time.Time, error) {
	step, err := b.Load.Step(ctx)
	if err != nil {
		return step, time.Time{}, err
	}
	for {
		select {
		case <-ctx.Done():
			return step, time.Time{}, fmt.Errorf("wait for an event: %w", ctx.Err())
		case e, ok := <-events:
			if !ok {
				return step, time.Time{}, errors.New("wait for an event: the watch has ended")
			}
			if e.address == step.To.String() {
				return step, e.at, nil
			}
		}
	}
}
