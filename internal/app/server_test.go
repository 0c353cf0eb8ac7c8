package app

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sluice/internal/config"
	"sluice/internal/dataplane"
	"sluice/internal/engine"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/source"
)

func TestNodeName(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct{ override, want string }{
		{"", strings.ToLower(strings.TrimSpace(host))},
		{" Node-1\t", "node-1"},
	}
	for _, tt := range tests {
		if got, err := nodeName(tt.override); err != nil || got != tt.want {
			t.Errorf("nodeName(%q) = %q, %v, want %q", tt.override, got, err, tt.want)
		}
	}
}

func TestHostFamilies(t *testing.T) {
	const off = "sys/net/ipv6/conf/all/disable_ipv6"
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	tests := []struct {
		name    string
		proc    fstest.MapFS
		want    int
		missing string
	}{
		{"both", fstest.MapFS{"net/if_inet6": file(""), off: file("0\n")}, 2, ""},
		{"no sysctl", fstest.MapFS{"net/if_inet6": file("")}, 2, ""},
		{"disabled", fstest.MapFS{"net/if_inet6": file(""), off: file("1\n")}, 1, "net.ipv6.conf.all.disable_ipv6 is 1"},
		{"no IPv6", fstest.MapFS{}, 1, "the kernel has no IPv6"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, missing := hostFamilies(tt.proc)
			if diff := cmp.Diff(proxy.Families[:tt.want], got); diff != "" || missing != tt.missing {
				t.Errorf("missing %q, want %q; families mismatch (-want +got):\n%s", missing, tt.missing, diff)
			}
		})
	}
}

func TestProbeKeepsToTheHost(t *testing.T) {
	host, _ := hostFamilies(os.DirFS("/proc"))
	mode := dataplane.Mode{Probe: func(context.Context, dataplane.Settings) ([]proxy.Family, error) {
		return []proxy.Family{proxy.IPv4, proxy.IPv6}, nil
	}}
	got, err := probe(t.Context(), mode, dataplane.Settings{})
	if err != nil || !slices.Equal(got, host) {
		t.Errorf("families %v, error %v, want %v", got, err, host)
	}
	mode.Probe = func(context.Context, dataplane.Settings) ([]proxy.Family, error) {
		return nil, errors.New("no nftables")
	}
	if _, err := probe(t.Context(), mode, dataplane.Settings{}); err == nil || err.Error() != "no nftables" {
		t.Errorf("error %v, want the mode's", err)
	}
}

func TestDescribeBuild(t *testing.T) {
	build := func(version string, settings ...string) *debug.BuildInfo {
		b := &debug.BuildInfo{Main: debug.Module{Version: version}}
		for i := 0; i < len(settings); i += 2 {
			b.Settings = append(b.Settings, debug.BuildSetting{Key: settings[i], Value: settings[i+1]})
		}
		return b
	}
	tests := []struct {
		build *debug.BuildInfo
		want  string
	}{
		{build("(devel)"), "devel"},
		{build(""), "devel"},
		{build("v1.2.3", "vcs.revision", "0123456789abcdef"), "v1.2.3"},
		{build("(devel)", "vcs.revision", "0123456789abcdef"), "devel-0123456789ab"},
		{build("(devel)", "vcs.revision", "0123456789abcdef", "vcs.modified", "true"), "devel-0123456789ab+dirty"},
	}
	for _, tt := range tests {
		if got := describe(tt.build); got != tt.want {
			t.Errorf("describe(%v) = %q, want %q", tt.build, got, tt.want)
		}
	}
}

func TestResolveSettings(t *testing.T) {
	empty, named := t.TempDir(), t.TempDir()
	node := "{apiVersion: v1, kind: Node, metadata: {name: here}}"
	if err := os.WriteFile(filepath.Join(named, "node.yaml"), []byte(node), 0o600); err != nil {
		t.Fatal(err)
	}
	primary := resolve.NodePortAddresses{Primary: true}
	tests := []struct {
		name    string
		options func(*Options)
		from    origin
		want    resolve.Settings
	}{
		{"cluster", func(*Options) {}, origin{}, resolve.Settings{NodePortAddresses: primary}},
		{"folder with our Node", func(*Options) {}, origin{manifests: named}, resolve.Settings{NodePortAddresses: primary}},
		{"folder without", func(*Options) {}, origin{manifests: empty}, resolve.Settings{}},
		{
			"folder without, but an address", func(o *Options) { o.BindAddress = "192.0.2.1" },
			origin{manifests: empty},
			resolve.Settings{NodePortAddresses: primary, NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
		},
		{
			"folder without, but CIDRs", func(o *Options) { o.NodePortAddresses = []string{"192.0.2.0/24"} },
			origin{manifests: empty},
			resolve.Settings{NodePortAddresses: resolve.NodePortAddresses{
				CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
			}},
		},
		{
			"node CIDR", func(o *Options) { o.DetectLocalMode = "NodeCIDR" },
			origin{},
			resolve.Settings{NodePortAddresses: primary, DetectLocal: resolve.DetectNodeCIDR},
		},
		{
			"bridge", func(o *Options) { o.DetectLocalMode, o.PodBridgeInterface = "BridgeInterface", "cni0" },
			origin{},
			resolve.Settings{NodePortAddresses: primary, DetectLocal: resolve.DetectBridgeInterface, Interface: "cni0"},
		},
		{
			"prefix", func(o *Options) { o.DetectLocalMode, o.PodInterfaceNamePrefix = "InterfaceNamePrefix", "veth" },
			origin{},
			resolve.Settings{
				NodePortAddresses: primary, DetectLocal: resolve.DetectInterfaceNamePrefix,
				Interface: "veth",
			},
		},
		{
			"cluster CIDR, masquerade all", func(o *Options) { o.ClusterCIDR, o.MasqueradeAll = "10.244.0.0/16", true },
			origin{},
			resolve.Settings{
				NodePortAddresses: primary, MasqueradeAll: true,
				ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := NewOptions()
			tt.options(o)
			c, err := o.Configuration()
			if err != nil {
				t.Fatal(err)
			}
			p := plan{config: c, node: "here", from: tt.from}
			got, err := p.resolveSettings(t.Context(), []proxy.Family{proxy.IPv4})
			if err != nil {
				t.Fatal(err)
			}
			tt.want.NodeName, tt.want.Families = "here", []proxy.Family{proxy.IPv4}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
				t.Errorf("settings mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConfigurationOfNoFlags(t *testing.T) {
	got, err := NewOptions().Configuration()
	if err != nil {
		t.Fatal(err)
	}
	opts := cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})
	if diff := cmp.Diff(config.Default(), got, opts); diff != "" {
		t.Errorf("configuration mismatch (-want +got):\n%s", diff)
	}
}

// life is how a part of the server runs: until it is told, or until it fails.
type life struct{ err error }

func (l life) live(ctx context.Context) error {
	if l.err == nil {
		<-ctx.Done()
	}
	return l.err
}

type fakeSource struct{ life }

func (f fakeSource) Run(ctx context.Context, _ source.Handler) error { return f.live(ctx) }

type fakeProvider struct {
	engine.Provider
	life
}

func (f fakeProvider) SyncLoop(ctx context.Context) error { return f.live(ctx) }

type fakePlane struct {
	proxy.Dataplane
	closed bool
}

func (f *fakePlane) Close() error {
	f.closed = true
	return nil
}

func TestRunEndsAsAWhole(t *testing.T) {
	tests := []struct {
		name             string
		source, provider life
		want             string
	}{
		{"told to stop", life{}, life{}, ""},
		{"no source", life{errors.New("folder gone")}, life{}, "read objects: folder gone"},
		{"no provider", life{}, life{errors.New("out of sync")}, "out of sync"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				plane := &fakePlane{}
				s := &ProxyServer{fakeSource{tt.source}, fakeProvider{life: tt.provider}, plane}
				begin, got := time.Now(), ""
				if err := s.Run(ctx); err != nil {
					got = err.Error()
				}
				if got != tt.want {
					t.Errorf("error %q, want %q", got, tt.want)
				}
				if took := time.Since(begin); (took == time.Minute) != (tt.want == "") {
					t.Errorf("ended after %v", took)
				}
				if !plane.closed {
					t.Error("the dataplane is not closed")
				}
			})
		})
	}
}
