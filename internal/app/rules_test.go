package app

import (
	"context"
	"errors"
	"strings"
	"testing"

	"sluice/internal/config"
	"sluice/internal/dataplane"
	"sluice/internal/proxy"
)

// TestChoose takes the first mode that the kernel can do.
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
		got, err := choose(t.Context(), func(m config.ProxyMode) (dataplane.Mode, error) {
			return dataplane.Mode{Probe: func(context.Context, dataplane.Settings) ([]proxy.Family, error) {
				for _, can := range tt.can {
					if m == can {
						return proxy.Families[:], nil
					}
				}
				return nil, errors.New("the kernel has no " + string(m))
			}}, nil
		})
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("of %v: took %q, error %v; want %q", tt.can, got, err, tt.want)
		}
		if err != nil && !strings.Contains(err.Error(), "nftables: the kernel has no nftables; iptables: the kernel has no iptables") {
			t.Errorf("error %q does not say why", err)
		}
	}
}
