package app

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	k8smetrics "k8s.io/component-base/metrics"

	"sluice/internal/dataplane"
	"sluice/internal/engine"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
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

func TestProbeUsesOnlyEnabledFamilies(t *testing.T) {
	host, _ := hostFamilies(os.DirFS("/proc"))
	mode := dataplane.Mode{Name: "some", Probe: func(context.Context, dataplane.Settings) ([]proxy.Family, error) {
		return []proxy.Family{proxy.IPv4, proxy.IPv6}, nil
	}}
	got, err := probe(t.Context(), mode, dataplane.Settings{})
	if err != nil || !slices.Equal(got.Families, host) {
		t.Errorf("settings %+v, error %v, want %v", got, err, host)
	}
	if s := NewOptions().settingsOf(configuration(t)); s.MasqueradeBit != 14 {
		t.Errorf("settings %+v", s)
	}
	mode.Probe = func(context.Context, dataplane.Settings) ([]proxy.Family, error) {
		return nil, errors.New("no nftables")
	}
	if _, err := probe(t.Context(), mode, dataplane.Settings{}); err == nil || err.Error() != "probe mode some: no nftables" {
		t.Errorf("error %v, want the mode's", err)
	}
}

// TestReadsBeforeProbing checks that the API server is asked at once, not only when the
// kernel has been probed and the dataplane is open: here there is no such mode.
func TestReadsBeforeProbing(t *testing.T) {
	asked := make(chan struct{}, 100)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		w.WriteHeader(http.StatusForbidden)
	}))
	defer api.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	o := parse(t, "--master="+api.URL, "--hostname-override=here")
	p, err := o.plan(configuration(t))
	if err != nil {
		t.Fatal(err)
	}
	p.config.Mode = "none"
	if _, err = NewProxyServer(ctx, p); err == nil {
		t.Error("no error for a mode that does not exist")
	}
	select {
	case <-asked:
	case <-time.After(30 * time.Second):
		t.Error("the API server was not asked")
	}
}

// TestVersionOfABuild checks that a build which is not a release has the compiler's
// version.
func TestVersionOfABuild(t *testing.T) {
	const pseudo = "v0.0.0-20260102030405-0123456789ab+dirty"
	for version, want := range map[string]string{"(devel)": "devel", "": "devel", "v1.2.3": "v1.2.3", pseudo: pseudo} {
		if got := buildInfo(&debug.BuildInfo{Main: debug.Module{Version: version}}).GitVersion; got != want {
			t.Errorf("%s is named %q, want %q", version, got, want)
		}
	}
}

// TestBuildInfoMetric checks that the metric has all that compiler and linker
// recorded.
func TestBuildInfoMetric(t *testing.T) {
	known := &debug.BuildInfo{
		Main: debug.Module{Version: "v1.22.3+dirty"},
		Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "0123456789abcdef"},
			{Key: "vcs.time", Value: "2026-01-02T03:04:05Z"},
			{Key: "vcs.modified", Value: "true"},
		},
	}
	r := k8smetrics.NewKubeRegistry()
	if err := registerBuild(r, buildInfo(known)); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "kubernetes_build_info" {
		t.Fatalf("metrics %v, error %v", families, err)
	}
	got := map[string]string{}
	for _, l := range families[0].Metric[0].Label {
		got[l.GetName()] = l.GetValue()
	}
	want := map[string]string{
		"major": "1", "minor": "22", "git_version": "v1.22.3+dirty", "git_commit": "0123456789abcdef", "git_tree_state": "dirty",
		"build_date": "2026-01-02T03:04:05Z", "go_version": runtime.Version(), "compiler": "gc", "platform": runtime.GOOS + "/" + runtime.GOARCH,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("labels mismatch (-want +got):\n%s", diff)
	}
}

func TestVersionFlag(t *testing.T) {
	tests := []struct{ arg, value, err string }{
		{"--version", "true", ""},
		{"--version=raw", "raw", ""},
		{"--version=false", "false", ""},
		{"--version=v0.0.0-mine.1", "v0.0.0-mine.1", ""},
		{"--version=v9.9.9", "", "v9.9.9 is not this release, v0.0.0; only what follows the release can differ"},
		{"--version=vanilla", "", `could not parse`},
		{"--version=maybe", "", "invalid syntax"},
	}
	for _, tt := range tests {
		o := NewOptions()
		err := newCommand("sluice", o, actions{}).ParseFlags([]string{tt.arg})
		if !strings.Contains(errorText(err), tt.err) || (err == nil) != (tt.err == "") || err == nil && o.version.String() != tt.value {
			t.Errorf("%s: %q, error %v", tt.arg, o.version.String(), err)
		}
	}
	if o := parse(t, "--version=v0.0.0-mine.1"); o.version.reported() != "v0.0.0-mine.1" || o.version.print(nil, "") {
		t.Error("the version to go by is not reported")
	}
	if out, err := execute(t, "--version=raw"); err != nil || !strings.HasPrefix(out, `version.Info{Major:"`) || !strings.Contains(out, runtime.Version()) {
		t.Errorf("--version=raw printed %q, error %v", out, err)
	}
}

// TestZPages checks that the gates decide which pages are served.
func TestZPages(t *testing.T) {
	for gates, want := range map[string][]string{
		"": {"/flagz", "/statusz"}, "ComponentFlagz=false": {"/statusz"}, "ComponentStatusz=false": {"/flagz"}, "AllBeta=false": nil,
	} {
		s := &ProxyServer{plan: plan{options: NewOptions(), config: configuration(t, "--feature-gates="+gates)}, refusals: newRefusals(func() []engine.RowStatus { return nil }, nil)}
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(s.zpages()))); diff != "" {
			t.Errorf("%s: pages mismatch (-want +got):\n%s", gates, diff)
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
		name  string
		flags []string
		from  objectSource
		want  resolve.Settings
	}{
		{"cluster", nil, objectSource{}, resolve.Settings{NodePortAddresses: primary}},
		{"cluster, mode left open", []string{"--proxy-mode="}, objectSource{}, resolve.Settings{LocalhostNodePorts: true}},
		{
			"cluster, mode left open, not on loopback",
			[]string{"--proxy-mode=", "--iptables-localhost-nodeports=false"},
			objectSource{},
			resolve.Settings{},
		},
		{
			"cluster, external IPs ignored",
			[]string{"--feature-gates=AllowServiceExternalIPs=false"},
			objectSource{},
			resolve.Settings{NodePortAddresses: primary, IgnoreExternalIPs: true},
		},
		{"cluster, mode iptables", []string{"--proxy-mode=iptables"}, objectSource{}, resolve.Settings{LocalhostNodePorts: true}},
		{"folder with our Node", nil, objectSource{manifests: named}, resolve.Settings{NodePortAddresses: primary}},
		{"folder without", nil, objectSource{manifests: empty}, resolve.Settings{}},
		{
			"folder without, but an address",
			[]string{"--bind-address=192.0.2.1"},
			objectSource{manifests: empty},
			resolve.Settings{NodePortAddresses: primary, NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
		},
		{
			"folder without, but CIDRs",
			[]string{"--nodeport-addresses=192.0.2.0/24"},
			objectSource{manifests: empty},
			resolve.Settings{NodePortAddresses: resolve.NodePortAddresses{
				CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
			}},
		},
		{
			"node CIDR",
			[]string{"--detect-local-mode=NodeCIDR"},
			objectSource{},
			resolve.Settings{NodePortAddresses: primary, NodeCIDRs: true},
		},
		{
			"bridge",
			[]string{"--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0"},
			objectSource{},
			resolve.Settings{NodePortAddresses: primary, LocalPods: proxy.LocalTrafficDetector{Interface: "cni0"}},
		},
		{
			"prefix",
			[]string{"--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"},
			objectSource{},
			resolve.Settings{
				NodePortAddresses: primary, LocalPods: proxy.LocalTrafficDetector{Interface: "veth", IsPrefix: true},
			},
		},
		{
			"cluster CIDR, masquerade all",
			[]string{"--cluster-cidr=10.244.0.0/16", "--masquerade-all"},
			objectSource{},
			resolve.Settings{
				NodePortAddresses: primary, MasqueradeAll: true,
				LocalPods: proxy.LocalTrafficDetector{Sources: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := plan{config: configuration(t, append([]string{"--proxy-mode=nftables"}, tt.flags...)...), node: "here", source: tt.from}
			got, err := p.resolveSettings(t.Context(), []proxy.Family{proxy.IPv4})
			if err != nil {
				t.Fatal(err)
			}
			tt.want.NodeName, tt.want.Families = "here", []proxy.Family{proxy.IPv4}
			tt.want.NodeExpected = tt.from.manifests == ""
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
				t.Errorf("settings mismatch (-want +got):\n%s", diff)
			}
		})
	}
}
