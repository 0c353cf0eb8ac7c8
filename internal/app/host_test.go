package app

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"sluice/internal/config"
	"sluice/internal/dataplane"
	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

// TestChoose checks that the first mode is chosen which the kernel supports.
func TestChoose(t *testing.T) {
	tests := []struct {
		can  []config.ProxyMode
		want config.ProxyMode
	}{
		{[]config.ProxyMode{config.NFTables, config.IPTables}, config.NFTables},
		{[]config.ProxyMode{config.IPTables}, config.IPTables},
		{nil, ""},
	}
	for _, tt := range tests {
		mode := func(m config.ProxyMode) dataplane.Mode {
			return dataplane.Mode{Name: m, Probe: func(context.Context, dataplane.Settings) ([]proxy.Family, error) {
				if slices.Contains(tt.can, m) {
					return proxy.Families[:], nil
				}
				return nil, errors.New("the kernel has no " + string(m))
			}}
		}
		got, err := choose(t.Context(), []dataplane.Mode{mode(config.NFTables), mode(config.IPTables)}, dataplane.Settings{})
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("of %v: took %q, error %v; want %q", tt.can, got, err, tt.want)
		}
		if err != nil && !strings.Contains(err.Error(), "nftables: the kernel has no nftables; iptables: the kernel has no iptables") {
			t.Errorf("error %q does not say why", err)
		}
	}
}

// TestChooseWhatTheHostNeeds checks that a mode which the host requires is chosen if
// the kernel supports it. If it does not, or if the requirement cannot be
// determined, that is logged and another mode is chosen.
func TestChooseWhatTheHostNeeds(t *testing.T) {
	tests := []struct {
		name  string
		why   string
		err   error
		probe error
		want  config.ProxyMode
		log   string
	}{
		{"not needed", "", nil, nil, config.NFTables, "no rule of the host drops what only mode iptables could keep alive"},
		{"needed", "FORWARD drops", nil, nil, config.IPTables, "FORWARD drops"},
		{"needed and not to be had", "FORWARD drops", nil, errors.New("no programs"), config.NFTables, "no programs"},
		{"not known", "", errors.New("too old"), nil, config.NFTables, "too old"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			buffer := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
			ctx := klog.NewContext(t.Context(), buffer)
			probe := func(err error) func(context.Context, dataplane.Settings) ([]proxy.Family, error) {
				return func(context.Context, dataplane.Settings) ([]proxy.Family, error) { return proxy.Families[:], err }
			}
			got, err := choose(ctx, []dataplane.Mode{
				{Name: config.NFTables, Probe: probe(nil)},
				{Name: config.IPTables, Probe: probe(tt.probe), Needs: func(dataplane.Settings) func(context.Context) (mode.Need, error) {
					return func(context.Context) (mode.Need, error) { return mode.Need{Why: tt.why}, tt.err }
				}},
			}, dataplane.Settings{})
			if err != nil || got != tt.want {
				t.Errorf("took %q, error %v; want %q", got, err, tt.want)
			}
			log := buffer.GetSink().(ktesting.Underlier).GetBuffer().String()
			if !strings.Contains(log, tt.log) {
				t.Errorf("%q is not in the log:\n%s", tt.log, log)
			}
		})
	}
}
