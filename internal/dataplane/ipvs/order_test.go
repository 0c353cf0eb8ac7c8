package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipvs"
	"sluice/internal/kernel/ipvs/ipvstest"
	"sluice/internal/kernel/link/linktest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// slowLink takes a while to add addresses.
type slowLink struct {
	*linktest.Dummy
	busy atomic.Bool
}

func (l *slowLink) Add(all ...netip.Addr) map[netip.Addr]error {
	l.busy.Store(true)
	defer l.busy.Store(false)
	time.Sleep(time.Second)
	return l.Dummy.Add(all...)
}

// watched sees to it that no virtual server is made before its address is there: the
// next daemon would take it for another program's. It fails after so many calls.
type watched struct {
	ipvs.Interface
	t     *testing.T
	link  *slowLink
	calls int

	beside bool // addresses came meanwhile
}

var errBroken = errors.New("broken")

func (w *watched) Do(ctx context.Context, ops []ipvs.Op) (map[int]error, error) {
	for _, o := range ops {
		if has, err := w.link.Has(o.Server.Addr.Addr()); !has || err != nil {
			w.t.Errorf("%v before its address, error %v", o, err)
		}
	}
	time.Sleep(time.Millisecond)
	w.beside = w.beside || w.link.busy.Load()
	if w.calls--; w.calls < 0 {
		return nil, errBroken
	}
	return w.Interface.Do(ctx, ops)
}

// TestAddressesComeFirst while servers are made at others, and nobody is left at work
// when that fails.
func TestAddressesComeFirst(t *testing.T) {
	const many = 1 << 20
	for _, calls := range []int{many, 0, 1, 4} {
		synctest.Test(t, func(t *testing.T) {
			h := newHost(t)
			slow := &slowLink{Dummy: h.link}
			d := h.open(mode.IPVS{})
			servers := &watched{Interface: h.servers, t: t, link: slow, calls: calls}
			d.kernel.link, d.kernel.servers = slow, servers
			var rows []*proxy.ServicePort
			for i := range 5*serversAtOnce + 1 {
				rows = append(rows, service(i, proxy.TCP, one, two))
			}
			begun := time.Now()
			err := proxytest.Sync(t.Context(), d, stateOf(rows...))
			if failed := calls < many; errors.Is(err, errBroken) != failed || !failed && err != nil {
				t.Errorf("broken after %d calls: error %v", calls, err)
			}
			if slow.busy.Load() {
				t.Errorf("broken after %d calls: addresses still come", calls)
			}
			// The aliases, what is there when the first row is rendered, and the rest.
			rest := time.Duration(len(rows)+bindsAtOnce-1) / bindsAtOnce
			if took := time.Since(begun); calls == many && (took > (2+rest+1)*time.Second || !servers.beside) {
				t.Errorf("addresses came in %v, beside servers: %v", took, servers.beside)
			}
		})
	}
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
