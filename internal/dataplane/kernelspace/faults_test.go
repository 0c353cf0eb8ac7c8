package kernelspace

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/hns"
	"sluice/internal/kernel/hns/hnstest"
	"sluice/internal/proxy"
)

// flaky is a service some of whose calls fail, half of them after they took effect.
type flaky struct {
	hns.Interface
	rng   *rand.Rand
	share float64
}

func (f *flaky) call(do func() error) error {
	why := hns.ErrNotRunning
	if f.rng.IntN(2) == 0 {
		why = errors.New("the remote procedure call failed")
	}
	switch p := f.rng.Float64(); {
	case p < f.share/2:
		_ = do() // nobody is told
		return why
	case p < f.share:
		return why
	}
	return do()
}

func (f *flaky) Network(ctx context.Context, name string) (n hns.Network, err error) {
	err = f.call(func() (err error) { n, err = f.Interface.Network(ctx, name); return err })
	return n, err
}

func (f *flaky) Endpoints(ctx context.Context) (all map[string]hns.Endpoint, err error) {
	err = f.call(func() (err error) { all, err = f.Interface.Endpoints(ctx); return err })
	return all, err
}

func (f *flaky) CreateEndpoint(ctx context.Context, e hns.Endpoint) (id string, err error) {
	err = f.call(func() (err error) { id, err = f.Interface.CreateEndpoint(ctx, e); return err })
	return id, err
}

func (f *flaky) DeleteEndpoint(ctx context.Context, id string) error {
	return f.call(func() error { return f.Interface.DeleteEndpoint(ctx, id) })
}

func (f *flaky) LoadBalancers(ctx context.Context) (all map[string]hns.LoadBalancer, err error) {
	err = f.call(func() (err error) { all, err = f.Interface.LoadBalancers(ctx); return err })
	return all, err
}

func (f *flaky) CreateLoadBalancer(ctx context.Context, l hns.LoadBalancer) (id string, err error) {
	err = f.call(func() (err error) { id, err = f.Interface.CreateLoadBalancer(ctx, l); return err })
	return id, err
}

func (f *flaky) UpdateLoadBalancer(ctx context.Context, id string, l hns.LoadBalancer) error {
	return f.call(func() error { return f.Interface.UpdateLoadBalancer(ctx, id, l) })
}

func (f *flaky) DeleteLoadBalancer(ctx context.Context, id string) error {
	return f.call(func() error { return f.Interface.DeleteLoadBalancer(ctx, id) })
}

// TestCallsFail makes calls of the service fail at random while rows change, and reacts to errors
// and refusals as the engine does. When all calls work again, HNS has what a fresh build has.
func TestCallsFail(t *testing.T) {
	failures := 0
	for seed := range uint64(100) {
		n, s := newNode(hnstest.Full, bridge, mode.Kernelspace{}), stateOf()
		f := &flaky{Interface: n.fake, rng: rand.New(rand.NewPCG(seed, 2))}
		n.Dataplane = New(f, func() (map[netip.Addr]string, error) { return macs, nil }, mode.Settings{Kernelspace: mode.Kernelspace{Network: bridge.Name}})
		dirty, full := map[proxy.PortKey]error{}, true
		run := func() (err error) {
			var refused proxy.Refused
			if full {
				refused, err = n.Sync(t.Context(), s)
			} else {
				c := &proxy.Changed{Rows: slices.SortedFunc(maps.Keys(dirty), proxy.ComparePortKeys)}
				if _, c.Leftovers = dirty[proxy.PortKey{}]; c.Leftovers {
					c.Rows = c.Rows[1:] // the zero key is no row
				}
				refused, err = n.Apply(t.Context(), s, c)
			}
			if err != nil {
				failures++
				full = full || errors.Is(err, proxy.ErrNeedSync)
				return err
			}
			full = false
			clear(dirty)
			failures += len(refused)
			maps.Copy(dirty, refused)
			return nil
		}
		f.share = .2
		for range 40 {
			to := slices.DeleteFunc([]string{"10.0.0.1:80", "10.1.0.1:80", "10.1.0.2:80", "10.1.0.3:80"}, func(string) bool { return f.rng.IntN(2) == 0 })
			i := 1 + f.rng.IntN(3)
			row := with(service(i, to...), i)
			if dirty[row.Key] = nil; f.rng.IntN(5) == 0 {
				delete(s.Rows, row.Key)
			} else {
				s.Rows[row.Key] = row
			}
			_ = run() // it is tried again
		}
		f.share = 0
		for range 3 { // and once more if all is to be compared
			if err := run(); err != nil && !errors.Is(err, proxy.ErrNeedSync) {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		if full || len(dirty) > 0 {
			t.Errorf("seed %d: %v are still refused, or nothing is known: %t", seed, dirty, full)
		}
		n.sync(t, s) // which takes away endpoints that could not go
		if n.wantFresh(t, s); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if failures < 1000 {
		t.Errorf("only %d failures", failures)
	}
}
