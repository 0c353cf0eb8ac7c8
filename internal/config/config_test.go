package config

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// TestValidate checks the error of each invalid value.
func TestValidate(t *testing.T) {
	bit := func(n int32) *int32 { return &n }
	period := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	tests := []struct {
		name   string
		change func(*v1alpha1.KubeProxyConfiguration)
		want   []string
	}{
		{"nothing said", func(*v1alpha1.KubeProxyConfiguration) {}, nil},
		{"both families", func(o *v1alpha1.KubeProxyConfiguration) { o.ClusterCIDR = "10.244.0.0/16,fd00::/48" }, nil},
		{"one IPv6 range", func(o *v1alpha1.KubeProxyConfiguration) { o.ClusterCIDR = "fd00::/48" }, nil},
		{
			"same family twice", func(o *v1alpha1.KubeProxyConfiguration) { o.ClusterCIDR = "10.0.0.0/16,10.1.0.0/16" },
			[]string{`clusterCIDR "10.0.0.0/16,10.1.0.0/16": two CIDRs must be one of each family`},
		},
		{
			"three", func(o *v1alpha1.KubeProxyConfiguration) { o.ClusterCIDR = "10.0.0.0/16,fd00::/48,fd01::/48" },
			[]string{`clusterCIDR "10.0.0.0/16,fd00::/48,fd01::/48": must be at most one CIDR of each family`},
		},
		{"nonsense that nobody reads", func(o *v1alpha1.KubeProxyConfiguration) {
			o.ClusterCIDR, o.DetectLocalMode = "x", "NodeCIDR"
		}, nil},
		{
			"unknown local mode", func(o *v1alpha1.KubeProxyConfiguration) { o.DetectLocalMode = "Magic" },
			[]string{`detectLocalMode "Magic": no such mode; modes: ` +
				`ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix`},
		},
		{"bridge", func(o *v1alpha1.KubeProxyConfiguration) {
			o.DetectLocalMode, o.DetectLocal.BridgeInterface = "BridgeInterface", "cni0"
		}, nil},
		{
			"no bridge", func(o *v1alpha1.KubeProxyConfiguration) { o.DetectLocalMode = "BridgeInterface" },
			[]string{`detectLocal.bridgeInterface "": mode BridgeInterface needs it`},
		},
		{"prefix", func(o *v1alpha1.KubeProxyConfiguration) {
			o.DetectLocalMode, o.DetectLocal.InterfaceNamePrefix = "InterfaceNamePrefix", "veth"
		}, nil},
		{
			"no prefix", func(o *v1alpha1.KubeProxyConfiguration) { o.DetectLocalMode = "InterfaceNamePrefix" },
			[]string{`detectLocal.interfaceNamePrefix "": mode InterfaceNamePrefix needs it`},
		},
		{"long name", func(o *v1alpha1.KubeProxyConfiguration) {
			o.DetectLocalMode, o.DetectLocal.BridgeInterface = "BridgeInterface", "abcdefghijklmnop"
		}, []string{`detectLocal.bridgeInterface "abcdefghijklmnop": longer than the 15 characters of an interface name`}},
		{"bad name", func(o *v1alpha1.KubeProxyConfiguration) {
			o.DetectLocalMode, o.DetectLocal.BridgeInterface = "BridgeInterface", "a b"
		}, []string{`detectLocal.bridgeInterface "a b": not an interface name`}},
		{"bits 0 and 31", func(o *v1alpha1.KubeProxyConfiguration) {
			o.IPTables.MasqueradeBit, o.NFTables.MasqueradeBit = bit(0), bit(31)
		}, nil},
		{"bits out of range", func(o *v1alpha1.KubeProxyConfiguration) {
			o.IPTables.MasqueradeBit, o.NFTables.MasqueradeBit = bit(32), bit(-1)
		}, []string{`iptables.masqueradeBit "32": must be from 0 to 31`, `nftables.masqueradeBit "-1": must be from 0 to 31`}},
		{
			"negative spacing", func(o *v1alpha1.KubeProxyConfiguration) { o.NFTables.MinSyncPeriod = period(-time.Second) },
			[]string{`nftables.minSyncPeriod "-1s": must not be negative`},
		},
		{
			"negative period", func(o *v1alpha1.KubeProxyConfiguration) { o.NFTables.SyncPeriod = period(-time.Second) },
			[]string{`nftables.syncPeriod "-1s": must be more than 0`},
		},
		{"spacing over period", func(o *v1alpha1.KubeProxyConfiguration) {
			o.Mode, o.NFTables.MinSyncPeriod, o.NFTables.SyncPeriod = "nftables", period(time.Minute), period(time.Second)
		}, []string{`nftables.minSyncPeriod "1m0s": must not be more than nftables.syncPeriod 1s`}},
		{
			"a word twice", func(o *v1alpha1.KubeProxyConfiguration) { o.NodePortAddresses = []string{"primary", "all", "primary"} },
			[]string{`nodePortAddresses "primary,all,primary": "primary" is there twice`},
		},
		{"addresses", func(o *v1alpha1.KubeProxyConfiguration) {
			o.BindAddress, o.HealthzBindAddress, o.MetricsBindAddress = "x", "[::1]:0", "10.0.0.1:65536"
		}, []string{
			`bindAddress "x": not an IP address`, `healthzBindAddress "[::1]:0": the port must be from 1 to 65535`,
			`metricsBindAddress "10.0.0.1:65536": the port must be from 1 to 65535`,
		}},
		{"names for addresses", func(o *v1alpha1.KubeProxyConfiguration) {
			o.HealthzBindAddress, o.MetricsBindAddress = "localhost", "localhost:1"
		}, []string{
			`healthzBindAddress "localhost": must be an IP address, or an IP address and a port, like 127.0.0.1:10256`,
			`metricsBindAddress "localhost:1": "localhost" is not an IP address`,
		}},
		{"connection tracking", func(o *v1alpha1.KubeProxyConfiguration) {
			negative := period(-time.Second)
			o.Conntrack = v1alpha1.KubeProxyConntrackConfiguration{
				MaxPerCore: bit(-1), Min: bit(-2), TCPEstablishedTimeout: &negative, TCPCloseWaitTimeout: &negative,
				UDPTimeout: negative, UDPStreamTimeout: negative,
			}
		}, []string{
			`conntrack.maxPerCore "-1": must not be negative`, `conntrack.min "-2": must not be negative`,
			`conntrack.tcpEstablishedTimeout "-1s": must not be negative`,
			`conntrack.tcpCloseWaitTimeout "-1s": must not be negative`,
			`conntrack.udpTimeout "-1s": must not be negative`, `conntrack.udpStreamTimeout "-1s": must not be negative`,
		}},
		{"process", func(o *v1alpha1.KubeProxyConfiguration) {
			o.ClientConnection.Burst, o.OOMScoreAdj, o.ConfigSyncPeriod = -1, bit(-1001), period(-1)
			o.ShowHiddenMetricsForVersion, o.HostnameOverride = "1.37", " "
		}, []string{
			`hostnameOverride " ": a node name cannot be blank`, `clientConnection.burst "-1": must not be negative`,
			`configSyncPeriod "-1ns": must be more than 0`, `oomScoreAdj "-1001": must be from -1000 to 1000`,
			`showHiddenMetricsForVersion "1.37": must be 1.36, the minor version before this one, or empty`,
		}},
		{"one address for two servers", func(o *v1alpha1.KubeProxyConfiguration) {
			o.HealthzBindAddress, o.MetricsBindAddress = "0.0.0.0:10256", "0.0.0.0:10256"
		}, []string{`metricsBindAddress "0.0.0.0:10256": the health server has the same address`}},
		{"other mode's fields", func(o *v1alpha1.KubeProxyConfiguration) {
			o.IPVS.ExcludeCIDRs, o.IPVS.TCPTimeout = []string{"x"}, period(-time.Second)
		}, nil},
		{"mode's CIDRs", func(o *v1alpha1.KubeProxyConfiguration) {
			o.Mode, o.IPVS.ExcludeCIDRs, o.IPVS.TCPTimeout = "ipvs", []string{"10.0.0.0/8", "x"}, period(-time.Second)
		}, []string{
			`ipvs.tcpTimeout "-1s": must not be negative`,
			`ipvs.excludeCIDRs "x": not a CIDR like 192.0.2.0/24`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var in Input
			tt.change(&in.Object)
			_, err := in.Configuration(NFTables)
			var got []string
			if err != nil {
				got = strings.Split(err.Error(), "\n")
				if _, ok := errors.AsType[FieldErrors](err); !ok {
					t.Errorf("%T is not FieldErrors", err)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("errors mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseBindAddress(t *testing.T) {
	tests := []struct{ in, want, err string }{
		{in: "", want: "invalid IP"},
		{in: "0.0.0.0", want: "invalid IP"},
		{in: "::", want: "invalid IP"},
		{in: "192.0.2.1", want: "192.0.2.1"},
		{in: "192.000.02.010", want: "192.0.2.10"},
		{in: "::ffff:192.0.2.1", want: "192.0.2.1"},
		{in: "2001:db8::1", want: "2001:db8::1"},
		{in: "node-1", err: `bindAddress "node-1": not an IP address`},
		{in: "192.0.2.1:80", err: `bindAddress "192.0.2.1:80": not an IP address`},
		{in: "fe80::1%eth0", err: `bindAddress "fe80::1%eth0": an address with a zone cannot be a node's address`},
	}
	for _, tt := range tests {
		got, err := parseBindAddress(tt.in)
		if checkError(t, "bindAddress", tt.in, err, tt.err) && got.String() != tt.want {
			t.Errorf("parseBindAddress(%q) = %v, want %v", tt.in, got, tt.want)
		}
	}
}

func TestParseClusterCIDRs(t *testing.T) {
	tests := []struct{ in, want, err string }{
		{in: "", want: "[]"},
		{in: " ", want: "[]"},
		{in: "10.244.1.2/16", want: "[10.244.0.0/16]"},
		{in: "010.0244.0.0/016", want: "[10.244.0.0/16]"},
		{in: "10.244.0.0/16, fd00::/48", want: "[10.244.0.0/16 fd00::/48]"},
		{in: "10.244.0.0", err: `clusterCIDR "10.244.0.0": "10.244.0.0" is not a CIDR like 10.244.0.0/16`},
		{in: "10.0.0.0/8,", err: `clusterCIDR "10.0.0.0/8,": "" is not a CIDR like 10.244.0.0/16`},
		{in: "10.0.0.0/33", err: `clusterCIDR "10.0.0.0/33": "10.0.0.0/33" is not a CIDR like 10.244.0.0/16`},
		{in: "::ffff:10.0.0.0/104", err: `clusterCIDR "::ffff:10.0.0.0/104": ` +
			`"::ffff:10.0.0.0/104" is not a CIDR like 10.244.0.0/16`},
	}
	for _, tt := range tests {
		got, err := parseClusterCIDRs(tt.in)
		if checkError(t, "clusterCIDR", tt.in, err, tt.err) && join(got) != tt.want {
			t.Errorf("parseClusterCIDRs(%q) = %v, want %v", tt.in, got, tt.want)
		}
	}
}

func TestParseNodePortAddresses(t *testing.T) {
	tests := []struct {
		in      []string
		primary bool
		want    string
		err     string
	}{
		{in: nil, want: "[]"},
		{in: []string{"primary"}, primary: true, want: "[]"},
		{in: []string{"all"}, want: "[]"},
		{in: []string{"192.0.2.5/24", "fd00::/8"}, want: "[192.0.2.0/24 fd00::/8]"},
		{in: []string{"localhost"}, want: "[127.0.0.0/8 ::1/128]"},
		{in: []string{"primary", "10.0.0.0/8"}, primary: true, want: "[10.0.0.0/8]"},
		{in: []string{"10.0.0.0/8", "localhost", "primary"}, primary: true, want: "[10.0.0.0/8 127.0.0.0/8 ::1/128]"},
		{in: []string{"all", "localhost"}, want: "[0.0.0.0/0 ::/0 127.0.0.0/8 ::1/128]"},
		{in: []string{"10.0.0.0/8", "10.0.0.0/8"}, want: "[10.0.0.0/8 10.0.0.0/8]"},
		{in: []string{"localhost", "localhost"}, err: `nodePortAddresses "localhost,localhost": "localhost" is there twice`},
		{in: []string{"Primary"}, err: `nodePortAddresses "Primary": ` +
			`"Primary" is neither a CIDR like 192.0.2.0/24 nor one of the words primary, localhost and all`},
		{in: []string{"10.0.0.0/8", "x"}, err: `nodePortAddresses "10.0.0.0/8,x": ` +
			`"x" is neither a CIDR like 192.0.2.0/24 nor one of the words primary, localhost and all`},
	}
	for _, tt := range tests {
		got, err := parseNodePortAddresses(tt.in)
		if checkError(t, "nodePortAddresses", strings.Join(tt.in, ","), err, tt.err) &&
			(join(got.CIDRs) != tt.want || got.Primary != tt.primary) {
			t.Errorf("parseNodePortAddresses(%q) = %+v, want %v, primary %t", tt.in, got, tt.want, tt.primary)
		}
	}
}

// checkError compares the error's text with the wanted one, and reports whether both
// are empty.
func checkError(t *testing.T, field, in string, err error, want string) bool {
	t.Helper()
	var r reader
	r.check(field, in, err)
	got := r.errs.Error()
	if got != want {
		t.Errorf("%q: error %q, want %q", in, got, want)
	}
	return got == "" && want == ""
}

func join(list []netip.Prefix) string {
	var out []string
	for _, p := range list {
		out = append(out, p.String())
	}
	return "[" + strings.Join(out, " ") + "]"
}
