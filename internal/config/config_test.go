package config

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDefaultIsValid(t *testing.T) {
	c := Default()
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidate(t *testing.T) {
	cidrs := func(list ...string) []netip.Prefix {
		var out []netip.Prefix
		for _, s := range list {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	tests := []struct {
		name   string
		change func(*Configuration)
		want   []string
	}{
		{"both families", func(c *Configuration) { c.ClusterCIDRs = cidrs("10.244.0.0/16", "fd00::/48") }, nil},
		{"one IPv6 range", func(c *Configuration) { c.ClusterCIDRs = cidrs("fd00::/48") }, nil},
		{
			"same family twice", func(c *Configuration) { c.ClusterCIDRs = cidrs("10.0.0.0/16", "10.1.0.0/16") },
			[]string{`clusterCIDR "10.0.0.0/16,10.1.0.0/16": two CIDRs must be one of each family`},
		},
		{
			"three", func(c *Configuration) { c.ClusterCIDRs = cidrs("10.0.0.0/16", "fd00::/48", "fd01::/48") },
			[]string{`clusterCIDR "10.0.0.0/16,fd00::/48,fd01::/48": at most one CIDR of each family`},
		},
		{
			"mode to come", func(c *Configuration) { c.Mode = IPTables },
			[]string{`mode "iptables": mode iptables is not built yet; modes: nftables`},
		},
		{
			"mode to come", func(c *Configuration) { c.Mode = Userspace },
			[]string{`mode "userspace": mode userspace is not built yet; modes: nftables`},
		},
		{
			"unknown mode", func(c *Configuration) { c.Mode = "NFTables" },
			[]string{`mode "NFTables": no such mode; modes: nftables`},
		},
		{"no mode", func(c *Configuration) { c.Mode = "" }, []string{`mode "": no such mode; modes: nftables`}},
		{
			"unknown local mode", func(c *Configuration) { c.DetectLocalMode = "Magic" },
			[]string{`detectLocalMode "Magic": no such mode; modes: ` +
				`ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix`},
		},
		{"bridge", func(c *Configuration) {
			c.DetectLocalMode, c.BridgeInterface = LocalModeBridgeInterface, "cni0"
		}, nil},
		{
			"no bridge", func(c *Configuration) { c.DetectLocalMode = LocalModeBridgeInterface },
			[]string{`detectLocal.bridgeInterface "": needed by mode BridgeInterface`},
		},
		{"prefix", func(c *Configuration) {
			c.DetectLocalMode, c.InterfaceNamePrefix = LocalModeInterfaceNamePrefix, "veth"
		}, nil},
		{
			"no prefix", func(c *Configuration) { c.DetectLocalMode = LocalModeInterfaceNamePrefix },
			[]string{`detectLocal.interfaceNamePrefix "": needed by mode InterfaceNamePrefix`},
		},
		{"long name", func(c *Configuration) {
			c.DetectLocalMode, c.BridgeInterface = LocalModeBridgeInterface, "abcdefghijklmnop"
		}, []string{`detectLocal.bridgeInterface "abcdefghijklmnop": longer than the 15 characters of an interface name`}},
		{"bad name", func(c *Configuration) {
			c.DetectLocalMode, c.BridgeInterface = LocalModeBridgeInterface, "a b"
		}, []string{`detectLocal.bridgeInterface "a b": not an interface name`}},
		{"bit 0", func(c *Configuration) { c.MasqueradeBit = 0 }, nil},
		{"bit 31", func(c *Configuration) { c.MasqueradeBit = 31 }, nil},
		{"bit 32", func(c *Configuration) { c.MasqueradeBit = 32 }, []string{`masqueradeBit "32": must be from 0 to 31`}},
		{"bit -1", func(c *Configuration) { c.MasqueradeBit = -1 }, []string{`masqueradeBit "-1": must be from 0 to 31`}},
		{"no spacing", func(c *Configuration) { c.MinSyncPeriod = 0 }, nil},
		{
			"negative spacing", func(c *Configuration) { c.MinSyncPeriod = -time.Second },
			[]string{`minSyncPeriod "-1s": must not be negative`},
		},
		{"no full sync", func(c *Configuration) { c.SyncPeriod = 0 }, []string{`syncPeriod "0s": must be more than 0`}},
		{
			"spacing over period", func(c *Configuration) { c.MinSyncPeriod = 2 * time.Hour },
			[]string{`minSyncPeriod "2h0m0s": must not be more than syncPeriod 1h0m0s`},
		},
		{
			"primary and more", func(c *Configuration) { c.NodePortAddresses.CIDRs = cidrs("192.0.2.0/24") },
			[]string{`nodePortAddresses "[192.0.2.0/24]": "primary" must stand alone`},
		},
		{
			"two wrongs", func(c *Configuration) { c.Mode, c.MasqueradeBit = "x", 40 },
			[]string{`mode "x": no such mode; modes: nftables`, `masqueradeBit "40": must be from 0 to 31`},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := Default()
			tt.change(&c)
			err := c.Validate()
			var got []string
			if err != nil {
				got = strings.Split(err.Error(), "\n")
				if _, ok := errors.AsType[*FieldError](err); !ok {
					t.Errorf("%T holds no FieldError", err)
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
		{in: "::ffff:192.0.2.1", want: "192.0.2.1"},
		{in: "2001:db8::1", want: "2001:db8::1"},
		{in: "node-1", err: `bindAddress "node-1": not an IP address`},
		{in: "192.0.2.1:80", err: `bindAddress "192.0.2.1:80": not an IP address`},
		{in: "fe80::1%eth0", err: `bindAddress "fe80::1%eth0": an address with a zone cannot be a node's address`},
	}
	for _, tt := range tests {
		got, err := ParseBindAddress(tt.in)
		if checkError(t, tt.in, err, tt.err) && got.String() != tt.want {
			t.Errorf("ParseBindAddress(%q) = %v, want %v", tt.in, got, tt.want)
		}
	}
}

func TestParseClusterCIDRs(t *testing.T) {
	tests := []struct{ in, want, err string }{
		{in: "", want: "[]"},
		{in: " ", want: "[]"},
		{in: "10.244.1.2/16", want: "[10.244.0.0/16]"},
		{in: "10.244.0.0/16, fd00::/48", want: "[10.244.0.0/16 fd00::/48]"},
		{in: "10.244.0.0", err: `clusterCIDR "10.244.0.0": "10.244.0.0" is not a CIDR like 10.244.0.0/16`},
		{in: "10.0.0.0/8,", err: `clusterCIDR "10.0.0.0/8,": "" is not a CIDR like 10.244.0.0/16`},
		{in: "10.0.0.0/33", err: `clusterCIDR "10.0.0.0/33": "10.0.0.0/33" is not a CIDR like 10.244.0.0/16`},
		{in: "::ffff:10.0.0.0/104", err: `clusterCIDR "::ffff:10.0.0.0/104": ` +
			`"::ffff:10.0.0.0/104" is not a CIDR like 10.244.0.0/16`},
	}
	for _, tt := range tests {
		got, err := ParseClusterCIDRs(tt.in)
		if checkError(t, tt.in, err, tt.err) && join(got) != tt.want {
			t.Errorf("ParseClusterCIDRs(%q) = %v, want %v", tt.in, got, tt.want)
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
		{in: []string{"192.0.2.5/24", "fd00::/8"}, want: "[192.0.2.0/24 fd00::/8]"},
		{in: []string{"primary", "10.0.0.0/8"}, err: `nodePortAddresses "primary,10.0.0.0/8": "primary" must stand alone`},
		{in: []string{"10.0.0.0/8", "x"}, err: `nodePortAddresses "10.0.0.0/8,x": ` +
			`"x" is neither a CIDR like 192.0.2.0/24 nor the word "primary"`},
	}
	for _, tt := range tests {
		got, err := ParseNodePortAddresses(tt.in)
		if checkError(t, strings.Join(tt.in, ","), err, tt.err) &&
			(join(got.CIDRs) != tt.want || got.Primary != tt.primary) {
			t.Errorf("ParseNodePortAddresses(%q) = %+v, want %v, primary %t", tt.in, got, tt.want, tt.primary)
		}
	}
}

// checkError reports whether there was to be no error, and none was.
func checkError(t *testing.T, in string, err error, want string) bool {
	t.Helper()
	got := ""
	if err != nil {
		got = err.Error()
	}
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
