package app

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sluice/internal/config"
	"sluice/internal/dataplane/mode"
	"sluice/internal/engine"
)

// TestFirewallWatcher has a host that drops traffic of Services some time after the start,
// and does not any more after that.
func TestFirewallWatcher(t *testing.T) {
	certain, possible := mode.Need{Why: "FORWARD drops", Certain: true}, mode.Need{Why: "FORWARD drops"}
	tests := []struct {
		name   string
		chosen bool
		need   mode.Need
		probe  error
		want   engine.DoubtKind // empty: none
		next   string
	}{
		{"the daemon's choice", true, possible, nil, "", "restart"},
		{"the daemon's choice, but there are no programs", true, possible, errors.New("no programs"), engine.FirewallMayDrop, "no programs"},
		{"the daemon's choice, nothing is accepted and there are no programs", true, certain, errors.New("no programs"), engine.FirewallDrops, "the image with the iptables programs"},
		{"a mode is set", false, certain, nil, engine.FirewallDrops, "set mode iptables"},
		{"a mode is set, and others may accept", false, possible, nil, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				type looked struct {
					mode.Need
					error
				}
				var host atomic.Pointer[looked]
				host.Store(&looked{})
				w := &firewallWatcher{
					running: config.NFTables, needed: config.IPTables, chosen: tt.chosen, doubts: new(engine.Doubts),
					look:  func(context.Context) (mode.Need, error) { seen := host.Load(); return seen.Need, seen.error },
					probe: func(context.Context) error { return tt.probe },
				}
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- w.Run(ctx) }()
				synctest.Wait()
				if all := w.doubts.All(); len(all) > 0 {
					t.Errorf("doubts %v before", all)
				}
				host.Store(&looked{Need: tt.need})
				time.Sleep(2 * firewallPeriod)
				if tt.next == "restart" {
					if restart, ok := errors.AsType[*RestartError](<-ended); !ok || !strings.Contains(restart.Error(), tt.need.Why) {
						t.Errorf("it ends with %v, want a restart", restart)
					}
					stop()
					return
				}
				host.Store(&looked{tt.need, errors.New("the kernel has no memory")}) // the doubt stays
				time.Sleep(2 * firewallPeriod)
				switch all := w.doubts.All(); {
				case tt.want == "" && len(all) > 0:
					t.Errorf("doubts %v, want none", all)
				case tt.want == "":
				case len(all) != 1 || all[0].Kind != tt.want || !strings.Contains(all[0].Reason, tt.need.Why) || !strings.Contains(all[0].Next, tt.next):
					t.Errorf("doubts %+v, want %s", all, tt.want)
				}
				host.Store(&looked{})
				time.Sleep(2 * firewallPeriod)
				if all := w.doubts.All(); len(all) > 0 {
					t.Errorf("doubts %v after", all)
				}
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
