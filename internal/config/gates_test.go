package config

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/component-base/featuregate"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// TestGatesOfKubeProxy checks some gates of each stage; test/cluster compares all of
// them with kube-proxy.
func TestGatesOfKubeProxy(t *testing.T) {
	gates, err := NewGates(nil)
	if err != nil {
		t.Fatal(err)
	}
	all := gates.GetAll()
	if len(all) < 250 {
		t.Errorf("%d gates, kube-proxy 1.37 has more", len(all))
	}
	for name, want := range map[featuregate.Feature]featuregate.FeatureSpec{
		GateExternalIPs:                     {Default: true, PreRelease: featuregate.GA},
		GateLocalhostNodePorts:              {Default: false, PreRelease: featuregate.Alpha},
		GateFlagz:                           {Default: true, PreRelease: featuregate.Beta},
		GateStatusz:                         {Default: true, PreRelease: featuregate.Beta},
		GateIPVS:                            {Default: true, PreRelease: featuregate.Deprecated},
		"MultiCIDRServiceAllocator":         {Default: true, PreRelease: featuregate.GA, LockToDefault: true},
		"NativeHistograms":                  {Default: true, PreRelease: featuregate.Beta}, // component-base's
		"WatchListClient":                   {Default: true, PreRelease: featuregate.Beta}, // client-go's
		"OpenAPIEnums":                      {Default: true, PreRelease: featuregate.Beta}, // apiserver's
		"LoggingBetaOptions":                {Default: true, PreRelease: featuregate.Beta},
		"AggregatedDiscoveryRemoveBetaType": {Default: true, PreRelease: featuregate.Deprecated, LockToDefault: true},
		"DRAFractionalCapacityRange":        {Default: false, PreRelease: featuregate.Beta}, // true with a newer control plane
		"AllowInsecureKubeletCertificateSigningRequests": {Default: false, PreRelease: featuregate.Deprecated},
	} {
		got, ok := all[name]
		if got.Default != want.Default || got.PreRelease != want.PreRelease || got.LockToDefault != want.LockToDefault || !ok {
			t.Errorf("%s is %+v, want %+v", name, got, want)
		}
	}
}

func TestGatesThatHaveAnEffect(t *testing.T) {
	tests := []struct {
		gates               string
		external, localhost bool
	}{
		{"", true, false},
		{"AllowServiceExternalIPs=false", false, false},
		{"AllowServiceExternalIPs=true", true, false},
		{"KubeProxyNFTablesLocalhostNodePorts=true", true, true},
		{"AllAlpha=true,AllBeta=true", true, true},
		{"AllAlpha=true,AllBeta=true,KubeProxyNFTablesLocalhostNodePorts=false", true, false},
		{"AllBeta=false", true, false},
	}
	for _, tt := range tests {
		c, err := withGates(tt.gates).Configuration(NFTables)
		if err != nil {
			t.Fatal(err)
		}
		external, localhost := c.Gates().Enabled(GateExternalIPs), c.Gates().Enabled(GateLocalhostNodePorts)
		if external != tt.external || localhost != tt.localhost {
			t.Errorf("%s: external IPs %t, localhost %t", tt.gates, external, localhost)
		}
	}
}

// TestLocalhostNodePortsOfNFTables checks that they need the gate and explicit
// loopback addresses of their family if the input sets the mode.
func TestLocalhostNodePortsOfNFTables(t *testing.T) {
	for _, tt := range []struct {
		gate      bool
		addresses []string
		want      bool // 127.0.0.0/8
		relay     bool // ::1
	}{
		{false, nil, false, false},
		{false, []string{Localhost}, false, false},
		{true, nil, false, false},
		{true, []string{All}, false, false},
		{true, []string{Localhost}, true, true},
		{true, []string{Primary, "127.0.0.1/32"}, true, false},
		{true, []string{"::1/128"}, false, true},
	} {
		in := withGates(fmt.Sprintf("%s=%t", GateLocalhostNodePorts, tt.gate))
		in.Object.Mode, in.Object.NodePortAddresses = v1alpha1.ProxyMode(NFTables), tt.addresses
		c, err := in.Configuration(NFTables)
		if err != nil {
			t.Fatal(err)
		}
		if c.LocalhostNodePorts != tt.want || c.RelayLoopback != tt.relay || c.RefuseLoopback != tt.gate {
			t.Errorf("gate %t, addresses %v: localhost NodePorts %t, relay %t, others refused %t",
				tt.gate, tt.addresses, c.LocalhostNodePorts, c.RelayLoopback, c.RefuseLoopback)
		}
	}
}

func TestGatesThatCannotBeSet(t *testing.T) {
	tests := []struct{ gates, want string }{
		{
			"MultiCIDRServiceAllocator=false",
			`featureGates "MultiCIDRServiceAllocator=false": cannot set feature gate MultiCIDRServiceAllocator to false, feature is locked to true`,
		},
		{
			"ClusterTrustBundle=false,ClusterTrustBundleProjection=true",
			"ClusterTrustBundleProjection is enabled, but depends on features that are disabled: [ClusterTrustBundle]",
		},
		{"AllowServiceExternalIP=false", `featureGates "AllowServiceExternalIP=false": unrecognized feature gate: AllowServiceExternalIP`},
	}
	for _, tt := range tests {
		_, err := withGates(tt.gates).Configuration(NFTables)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.gates, err, tt.want)
		}
	}
}

// TestIPVSGate checks that only mode ipvs needs the gate.
func TestIPVSGate(t *testing.T) {
	in := withGates("KubeProxyIPVS=false")
	if _, err := in.Configuration(NFTables); err != nil {
		t.Error(err)
	}
	in.Object.Mode = IPVS
	if _, err := in.Configuration(NFTables); err == nil || !strings.Contains(err.Error(), `mode "ipvs": disabled by feature gate KubeProxyIPVS`) {
		t.Errorf("mode ipvs: %v", err)
	}
}

func withGates(text string) Input {
	in := Input{Object: v1alpha1.KubeProxyConfiguration{FeatureGates: map[string]bool{}}}
	for item := range strings.SplitSeq(text, ",") {
		if name, value, ok := strings.Cut(item, "="); ok {
			in.Object.FeatureGates[name] = value == "true"
		}
	}
	return in
}
