package hns

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"github.com/Microsoft/hnslib/hcn"
)

// TestNotRunning checks that a stopped service is distinguished from missing objects.
func TestNotRunning(t *testing.T) {
	if os.Getenv("SLUICE_TEST_HNS_STOPPED") == "" {
		t.Skip("SLUICE_TEST_HNS_STOPPED does not say that the service is stopped")
	}
	s := Service{}
	_, features := s.Features(t.Context())
	_, network := s.Network(t.Context(), "overlay")
	for what, err := range map[string]error{"features": features, "network": network} {
		if !errors.Is(err, ErrNotRunning) || errors.Is(err, ErrNotFound) {
			t.Errorf("%s: error %v, want %v", what, err, ErrNotRunning)
		}
	}
}

// TestDeletedWhileListed deletes one of three load balancers during each list.
func TestDeletedWhileListed(t *testing.T) {
	if os.Getenv("SLUICE_TEST_HNS_DELETES") == "" {
		t.Skip("SLUICE_TEST_HNS_DELETES does not say that the service has three load balancers and deletes one")
	}
	s := Service{}
	if all, err := s.LoadBalancers(t.Context()); len(all) != 2 || err != nil {
		t.Errorf("%v, error %v; want the two that stay", all, err)
	}
}

// TestForeignLoadBalancers wants those that we could not have made not to look
// like ours.
func TestForeignLoadBalancers(t *testing.T) {
	port := []hcn.LoadBalancerPortMapping{{Protocol: 6, ExternalPort: 80, InternalPort: 8080}}
	for name, l := range map[string]*hcn.HostComputeLoadBalancer{
		"no port":       {FrontendVIPs: []string{"10.96.0.10"}},
		"two ports":     {FrontendVIPs: []string{"10.96.0.10"}, PortMappings: append(port, port...)},
		"two addresses": {FrontendVIPs: []string{"10.96.0.10", "10.96.0.11"}, PortMappings: port},
		"no address":    {FrontendVIPs: []string{"web"}, PortMappings: port},
	} {
		if _, got := loadBalancerOf(l); got.Protocol != 0 {
			t.Errorf("%s: %+v, want no protocol", name, got)
		}
	}
	if _, got := loadBalancerOf(&hcn.HostComputeLoadBalancer{FrontendVIPs: []string{"10.96.0.10"}, PortMappings: port}); got.Protocol != 6 || got.VIP != netip.MustParseAddr("10.96.0.10") {
		t.Errorf("%+v; want one of ours", got)
	}
}

// TestUnsupported wants what hnslib says of a call that is not implemented to be told
// from other failures.
func TestUnsupported(t *testing.T) {
	err := do(t.Context(), "update", func() error { return errors.New("hcnModifyLoadBalancer failed in Win32: Not implemented (0x80004001)") })
	if !errors.Is(err, ErrUnsupported) {
		t.Errorf("error %v, want %v", err, ErrUnsupported)
	}
}

// TestVersions checks the version ranges of features.
func TestVersions(t *testing.T) {
	for v, want := range map[hcn.Version]bool{
		{Major: 9, Minor: 2}: false, {Major: 9, Minor: 3}: true, {Major: 9, Minor: 9}: true, {Major: 10, Minor: 1}: false, {Major: 10, Minor: 2}: true, {Major: 16}: true,
	} {
		if got := within(v, hcn.DSRVersion); got != want {
			t.Errorf("version %v has direct server return: %t, want %t", v, got, want)
		}
	}
}
