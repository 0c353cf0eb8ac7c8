package ipvs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipvs"
	"sluice/internal/kernel/ipvs/ipvstest"
	"sluice/internal/kernel/link/linktest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// watched sees to it that no virtual server is made before packets to its address are
// delivered here: the next daemon would take it for another program's. It fails after so
// many calls.
type watched struct {
	ipvs.Interface
	t     *testing.T
	link  *linktest.Dummy
	calls int
}

var errBroken = errors.New("broken")

func (w *watched) Do(ctx context.Context, ops []ipvs.Op) (map[int]error, error) {
	for _, o := range ops {
		if has, err := w.link.Has(o.Server.Addr.Addr()); !has || err != nil {
			w.t.Errorf("%v before its address, error %v", o, err)
		}
	}
	if w.calls--; w.calls < 0 {
		return nil, errBroken
	}
	return w.Interface.Do(ctx, ops)
}

// TestAddressesComeFirst as routes, which cost the same at any number, and are added to
// the link while the daemon runs. A daemon that is killed at any call leaves nothing that
// the next one takes for another program's.
func TestAddressesComeFirst(t *testing.T) {
	const many = 1 << 20
	for _, calls := range []int{many, 0, 1, 4} {
		t.Run(fmt.Sprint(calls), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t)
				d := h.open(mode.IPVS{})
				d.kernel.servers = &watched{h.servers, t, h.link, calls}
				var rows []*proxy.ServicePort
				want := slices.Clone(aliasNames)
				for i := range 5*serversAtOnce + 1 {
					rows = append(rows, service(i, proxy.TCP, one, two))
					want = append(want, rows[i].Frontends[0].Addr.Addr().String())
				}
				slices.Sort(want)
				err := proxytest.Sync(t.Context(), d, stateOf(rows...))
				if failed := calls < many; errors.Is(err, errBroken) != failed || !failed && err != nil {
					t.Errorf("error %v", err)
				}
				if err != nil {
					d = h.open(mode.IPVS{}) // the next daemon
					if err := proxytest.Sync(t.Context(), d, stateOf(rows...)); err != nil {
						t.Errorf("the next daemon: %v", err)
					}
				}
				h.wantRouted(len(want) - len(aliases))
				go func() { _ = d.Run(t.Context()) }()
				synctest.Wait()
				h.wantRouted(0)
				for _, sp := range rows {
					h.wantReals(at(sp), map[string]uint32{one: 1, two: 1})
				}
			})
		})
	}
}

// wantRouted expects so many addresses that are not on the link yet.
func (h *host) wantRouted(want int) {
	h.t.Helper()
	if _, routed, err := h.link.List(); len(routed) != want || err != nil {
		h.t.Errorf("%d addresses have only routes, error %v; want %d", len(routed), err, want)
	}
}

// TestAddressesAreRefused by the link: routes serve until a Sync tries again.
func TestAddressesAreRefused(t *testing.T) {
	h := newHost(t)
	d, sp := h.open(mode.IPVS{}), service(1, proxy.TCP, one)
	addr := sp.Frontends[0].Addr.Addr()
	proxytest.MustSync(t, d, stateOf(sp))
	h.link.Refuse(addr, errBroken)
	d.addRouted(t.Context())
	h.wantRouted(1)
	h.wantReals(at(sp), map[string]uint32{one: 1})
	h.link.Refuse(addr, nil)
	h.sync(d, sp)
	h.wantRouted(0)
	h.wantReals(at(sp), map[string]uint32{one: 1})
}

// TestAddressesOfRefusedRows are there before the kernel refuses the servers, and are
// removed.
func TestAddressesOfRefusedRows(t *testing.T) {
	h := newHost(t)
	h.servers = ipvstest.NewFake("rr")
	rows := []*proxy.ServicePort{service(0, proxy.TCP, one)}
	for i := range 3 * serversAtOnce {
		rows = append(rows, service(i+1, proxy.TCP, one))
		rows[i+1].Balancing = proxy.Maglev
	}
	refused, err := h.open(mode.IPVS{}).Sync(t.Context(), stateOf(rows...))
	if len(refused) != len(rows)-1 || err != nil {
		t.Errorf("%d rows refused, error %v; want all but one", len(refused), err)
	}
	h.wantAddresses("10.96.0.0", aliasNames[0], aliasNames[1])
}
