package dataplane

import (
	"testing"

	"sluice/internal/config"
)

func TestEveryBuiltModeIsInTheTable(t *testing.T) {
	for _, m := range config.Modes() {
		mode, err := Of(m)
		if err != nil {
			t.Errorf("mode %s: %v", m, err)
			continue
		}
		if mode.Probe == nil || mode.Prepare == nil || mode.Open == nil || mode.Cleanup == nil {
			t.Errorf("mode %s is not whole: %+v", m, mode)
		}
	}
}

func TestOtherModesAreNamed(t *testing.T) {
	tests := []struct {
		mode config.ProxyMode
		want string
	}{
		{config.IPVS, `open proxy mode "ipvs": mode ipvs is not built yet; modes: nftables, iptables`},
		{"foo", `open proxy mode "foo": no such mode; modes: nftables, iptables`},
	}
	for _, tt := range tests {
		if _, err := Of(tt.mode); err == nil || err.Error() != tt.want {
			t.Errorf("Of(%q): error %v, want %q", tt.mode, err, tt.want)
		}
	}
}
