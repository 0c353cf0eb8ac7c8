package app

import (
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/config"
	"sluice/internal/dataplane"
	"sluice/internal/proxy"
)

// TestPrimaryFamily checks that a proxy ends if it cannot serve the primary family
// of its node, unless it has already synced.
func TestPrimaryFamily(t *testing.T) {
	tests := []struct {
		name, node, bind string
		serving          bool
		want             string // of the error; empty: none
	}{
		{"served", "192.168.0.1", "", false, ""},
		{"not served", "fd00::9", "", false, "the first address of Node here is fd00::9, but IPv6 cannot be served"},
		{"unknown", "", "", false, ""},
		{"in force already", "fd00::9", "", true, ""},
		{"another address is to count", "fd00::9", "192.168.0.1", false, ""},
		{"none is to count", "fd00::9", "0.0.0.0", false, "the first address of Node here is fd00::9"},
		{"that is not served", "192.168.0.1", "fd00::9", false, "bindAddress is fd00::9, but IPv6 cannot be served"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &ProxyServer{
				families: []proxy.Family{proxy.IPv4}, mode: dataplane.Mode{Name: config.NFTables},
				ready: make(chan struct{}), familyErr: make(chan error, 1),
			}
			if tt.bind != "" {
				s.plan.config.BindAddress = netip.MustParseAddr(tt.bind)
			}
			n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}}
			if tt.node != "" {
				n.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: tt.node}}
			}
			if tt.serving {
				close(s.ready)
			}
			err := s.checkFamily(s.plan.config.BindAddress, "bindAddress")
			if err == nil {
				s.checkNode(n)
				s.checkNode(n) // does not wait
			}
			if len(s.familyErr) > 0 {
				err = s.watchNodeFamily(t.Context())
			}
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v; want %q", err, tt.want)
			}
		})
	}
}
