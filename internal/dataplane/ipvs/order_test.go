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

// TestAddressesComeFirst while servers are made at others, and nobody is left at work
// when that fails.
func TestAddressesComeFirst(t *testing.T) {
	const many = 1 << 20
	for _, calls := range []int{many, 0, 1, 4} {
		synctest.Test(t, func(t *testing.T) {
			h := newHost(t)
			slow := &slowLink{Dummy: h.link}
			d := h.open(mode.IPVS{})
			d.kernel.link, d.kernel.servers = slow, &watched{h.servers, t, slow, calls}
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
			// Aliases, then six times the addresses of some servers.
			if took := time.Since(begun); calls == many && took != 7*time.Second {
				t.Errorf("addresses came in %v", took)
			}
		})
	}
}
