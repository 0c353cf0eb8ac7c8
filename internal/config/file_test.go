package config

import (
	"encoding/json"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

// equalNets lets cmp compare addresses.
func equalNets() cmp.Option {
	return cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})
}

// decodeFile reads a file of testdata, which must not cause warnings.
func decodeFile(t *testing.T, name string) Input {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	in, warnings, err := Decode(data)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("error %v, warnings %q", err, warnings)
	}
	return in
}

// understood is what kube-proxy does when it is told nothing, as far as all
// modes agree.
func understood() Configuration {
	o := Defaults()
	o.HealthzBindAddress, o.MetricsBindAddress = "0.0.0.0:10256", "127.0.0.1:10249"
	return Configuration{
		Object:             o,
		HealthzBindAddress: netip.MustParseAddrPort("0.0.0.0:10256"),
		MetricsBindAddress: netip.MustParseAddrPort("127.0.0.1:10249"),
		MasqueradeBit:      14,
		LocalhostNodePorts: true,
	}
}

// compare looks at every field.
func compare(t *testing.T, want, got Configuration) {
	t.Helper()
	opts := cmp.Options{equalNets(), cmpopts.IgnoreUnexported(Configuration{})}
	if diff := cmp.Diff(want, got, opts); diff != "" {
		t.Errorf("configuration mismatch (-want +got):\n%s", diff)
	}
	for field := range flatten(got.Object) {
		if explicit := got.Explicit(field); strings.HasPrefix(field, "conntrack.") && explicit {
			t.Errorf("%s counts as set explicitly", field)
		}
	}
}

// TestKubeadmConfigMap reads the ConfigMap of kubeadm. It has every field, most of
// them zero, which counts as not set. Up to 1.36 the mode is not set either, so that
// NodePorts are open where kube-proxy's default, iptables, opens them.
func TestKubeadmConfigMap(t *testing.T) {
	in := decodeFile(t, "kubeadm.yaml")
	missing(t, "kubeadm.yaml")
	got, err := in.Configuration(NFTables)
	if err != nil {
		t.Fatal(err)
	}
	want := understood()
	want.Mode = NFTables
	want.Object.ClientConnection.Kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf"
	want.Object.ClusterCIDR, want.ClusterCIDRs = "10.244.0.0/16", []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	want.SyncPeriod = time.Hour // and no pause between changes
	want.Object.NFTables.SyncPeriod.Duration = time.Hour
	compare(t, want, got)
	if in.Object.Mode != "" || got.Object.Mode != "" {
		t.Errorf("mode %q was asked for, and is told as %q", in.Object.Mode, got.Object.Mode)
	}
}

// TestNodePortsOfAMode checks that NodePorts are open where kube-proxy opens them by
// default: in mode iptables on all addresses and loopback, in mode nftables on the
// node's own addresses. Both use what is set.
func TestNodePortsOfAMode(t *testing.T) {
	all, primary := NodePortAddresses{}, NodePortAddresses{Primary: true}
	tests := []struct {
		file, unset ProxyMode
		off         bool // localhostNodePorts: false
		addresses   []string
		want        NodePortAddresses
		localhost   bool
	}{
		{"", NFTables, false, nil, all, true},
		{"", IPTables, false, nil, all, true},
		{"", NFTables, true, nil, all, false},
		{"", NFTables, false, []string{Primary}, primary, true},
		{IPTables, NFTables, false, nil, all, true}, // as kubeadm 1.37 writes it
		{IPTables, NFTables, true, nil, all, false},
		{IPVS, NFTables, false, nil, all, false},
		{"", IPVS, false, nil, all, false},
		{NFTables, IPTables, false, nil, primary, false},
		{NFTables, IPTables, false, []string{All}, all, false},
	}
	for _, tt := range tests {
		var in Input
		in.Object.Mode, in.Object.NodePortAddresses = v1alpha1.ProxyMode(tt.file), tt.addresses
		if tt.off {
			in.Object.IPTables.LocalhostNodePorts = new(false)
		}
		c, err := in.Configuration(tt.unset)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, c.NodePortAddresses, equalNets()); diff != "" || c.LocalhostNodePorts != tt.localhost {
			t.Errorf("%+v: loopback %t, addresses (-want +got):\n%s", tt, c.LocalhostNodePorts, diff)
		}
		again, err := Input{Object: *c.Object}.Configuration(tt.unset)
		if err != nil {
			t.Fatal(err)
		}
		if changes := Changes(&c, &again); len(changes) > 0 {
			t.Errorf("%+v: what is in force reads as %v", tt, changes)
		}
	}
}

// TestKubeProxyDefaults reads the configuration that kube-proxy writes without
// flags.
func TestKubeProxyDefaults(t *testing.T) {
	missing(t, "kube-proxy-defaults.yaml")
	got, err := decodeFile(t, "kube-proxy-defaults.yaml").Configuration(NFTables)
	if err != nil {
		t.Fatal(err)
	}
	want := understood()
	want.Mode, want.Object.Mode = IPTables, v1alpha1.ProxyMode(IPTables)
	want.SyncPeriod, want.MinSyncPeriod = 30*time.Second, time.Second
	want.Object.IPTables.SyncPeriod.Duration, want.Object.IPTables.MinSyncPeriod.Duration = want.SyncPeriod, want.MinSyncPeriod
	// Its conntrack values are the defaults, so nobody has asked to lower the host's to them.
	compare(t, want, got)

	// Asked for what is in force, we print the file again.
	text, err := yaml.Marshal(got.Object)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile("testdata/kube-proxy-defaults.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(file), string(text)); diff != "" {
		t.Errorf("file mismatch (-want +got):\n%s", diff)
	}
}

// missing fails for a field that a file of testdata does not have, so that the files
// stay complete when the type grows.
func missing(t *testing.T, name string) {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]any
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	var empty map[string]any
	text, err := json.Marshal(v1alpha1.KubeProxyConfiguration{})
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &empty); err != nil {
		t.Fatal(err)
	}
	absent(t, "", empty, file)
}

func absent(t *testing.T, path string, whole, file map[string]any) {
	t.Helper()
	for name, value := range whole {
		here, ok := file[name]
		if !ok {
			t.Errorf("field %s%s is not in the file", path, name)
		}
		if section, ok := value.(map[string]any); ok {
			below, _ := here.(map[string]any)
			absent(t, path+name+".", section, below)
		}
	}
}

// TestPeriodsOfAMode checks which section each mode uses.
func TestPeriodsOfAMode(t *testing.T) {
	tests := []struct {
		name, text string
		every, min time.Duration
		bit        int
		all        bool
	}{
		{"nftables", "mode: nftables", time.Hour, 0, 14, false},
		{
			"nftables, kubeadm's zeros", "mode: nftables\nnftables: {minSyncPeriod: 0s, syncPeriod: 0s, masqueradeBit: null}",
			time.Hour, 0, 14, false,
		},
		{
			"nftables, as kube-proxy has them", "mode: nftables\nnftables: {minSyncPeriod: 1s, syncPeriod: 30s}",
			30 * time.Second, time.Second, 14, false,
		},
		{"nftables, another section", "mode: nftables\niptables: {minSyncPeriod: 5s, syncPeriod: 6s, masqueradeBit: 7, " +
			"masqueradeAll: true}\nnftables: {masqueradeBit: 9}", time.Hour, 0, 9, false},
		{
			"left open", "iptables: {minSyncPeriod: 5s, syncPeriod: 6s, masqueradeBit: 7, masqueradeAll: true}",
			6 * time.Second, 5 * time.Second, 7, true,
		},
		{
			"left open, our section", "nftables: {minSyncPeriod: 5s, syncPeriod: 6s, masqueradeBit: 7, masqueradeAll: true}",
			6 * time.Second, 5 * time.Second, 7, true,
		},
		{
			"left open, both", "iptables: {minSyncPeriod: 1s}\nnftables: {minSyncPeriod: 5s, syncPeriod: 6s}",
			6 * time.Second, time.Second, 14, false,
		},
		{"iptables", "mode: iptables\nnftables: {minSyncPeriod: 9s, masqueradeBit: 99}", 30 * time.Second, 0, 14, false},
		{"iptables, given", "mode: iptables\niptables: {minSyncPeriod: 1s}", 30 * time.Second, time.Second, 14, false},
		{
			"ipvs", "mode: ipvs\niptables: {minSyncPeriod: 9s, masqueradeAll: true, masqueradeBit: 0}",
			30 * time.Second, 0, 0, true,
		},
		{"ipvs, given", "mode: ipvs\nipvs: {minSyncPeriod: 1s, syncPeriod: 2s}", 2 * time.Second, time.Second, 14, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in, _, err := Decode([]byte("apiVersion: " + apiVersion + "\nkind: " + kind + "\n" + tt.text))
			if err != nil {
				t.Fatal(err)
			}
			c, err := in.Configuration(NFTables)
			if err != nil {
				t.Fatal(err)
			}
			if c.SyncPeriod != tt.every || c.MinSyncPeriod != tt.min || c.MasqueradeBit != tt.bit || c.MasqueradeAll != tt.all {
				t.Errorf("periods %v and %v, bit %d, all %t, want %v and %v, %d, %t", c.SyncPeriod, c.MinSyncPeriod,
					c.MasqueradeBit, c.MasqueradeAll, tt.every, tt.min, tt.bit, tt.all)
			}
		})
	}
}

// TestAddressesFollowTheFamily reads files of IPv6 nodes.
func TestAddressesFollowTheFamily(t *testing.T) {
	tests := []struct{ bind, healthz, metrics, wantHealthz, wantMetrics string }{
		{"", "", "", "0.0.0.0:10256", "127.0.0.1:10249"},
		{"::", "", "", "[::]:10256", "[::1]:10249"},
		{"2001:db8::1", "", "", "[::]:10256", "[::1]:10249"},
		{"2001:db8::1", "192.0.2.1", "010.0.0.1:99", "192.0.2.1:10256", "10.0.0.1:99"},
		{"", "::1", "[::]:1", "[::1]:10256", "[::]:1"},
		{"", "none", "none", "none", "none"},
	}
	for _, tt := range tests {
		var in Input
		in.Object.BindAddress, in.Object.HealthzBindAddress, in.Object.MetricsBindAddress = tt.bind, tt.healthz, tt.metrics
		c, err := in.Configuration(NFTables)
		if err != nil {
			t.Errorf("%+v: %v", tt, err)
		}
		if c.Object.HealthzBindAddress != tt.wantHealthz || c.Object.MetricsBindAddress != tt.wantMetrics {
			t.Errorf("%+v: healthz %s, metrics %s", tt, c.Object.HealthzBindAddress, c.Object.MetricsBindAddress)
		}
	}
}

// plain returns the configuration of an empty input.
func plain(t *testing.T) Configuration {
	t.Helper()
	c, err := Input{}.Configuration(NFTables)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestChangesMissNothing changes every field and checks that Changes returns it.
func TestChangesMissNothing(t *testing.T) {
	before := plain(t)
	if changes := Changes(&before, &before); len(changes) > 0 {
		t.Errorf("nothing changed, but %v", changes)
	}
	check := func(name string, change func(*Configuration) reflect.Value) {
		t.Helper()
		c := plain(t)
		v := change(&c)
		v.Set(other(t, v))
		if changes := Changes(&before, &c); len(changes) != 1 || changes[0].Live != slices.Contains(liveFields, changes[0].Field) {
			t.Errorf("%s: changes %v", name, changes)
		}
	}
	held := plain(t)
	held.Object.Winkernel.ForwardHealthCheckVip = true
	moved := held
	moved.HealthzBindAddress = netip.AddrPort{}
	if changes := Changes(&held, &moved); len(changes) != 1 || changes[0].Live {
		t.Errorf("a health server that HNS forwards to moves: changes %v", changes)
	}
	fields, seen := before.effectiveFields(), 0
	for field := range flatten(before.Object) {
		if _, counts := fields[field]; !counts || slices.Contains(read, field) ||
			field == "logging.flushFrequency" || strings.HasSuffix(field, "infoBufferSize") {
			continue // only what was read of it counts, or it has a type that has no other value here
		}
		check(field, func(c *Configuration) reflect.Value { return Field(c.Object, field) })
		seen++
	}
	if seen < 35 {
		t.Errorf("only %d fields of the object are looked at", seen)
	}
	walk := func(below func(*Configuration) reflect.Value) {
		v := below(&Configuration{})
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Name != "Object" && f.Type.Kind() != reflect.Struct || strings.HasPrefix(f.Type.String(), "netip.") {
				check(f.Name, func(c *Configuration) reflect.Value { return below(c).Field(i) })
			}
		}
	}
	walk(func(c *Configuration) reflect.Value { return reflect.ValueOf(c).Elem() })
	walk(func(c *Configuration) reflect.Value { return reflect.ValueOf(&c.NodePortAddresses).Elem() })

	for name, change := range map[string]func(*logsapi.LoggingConfiguration){
		"verbosity": func(l *logsapi.LoggingConfiguration) { l.Verbosity = 9 },
		"format":    func(l *logsapi.LoggingConfiguration) { l.Format = "json" },
		"flush":     func(l *logsapi.LoggingConfiguration) { l.FlushFrequency.Duration.Duration = 1 },
		"vmodule": func(l *logsapi.LoggingConfiguration) {
			l.VModule = logsapi.VModuleConfiguration{{FilePattern: "a", Verbosity: 1}}
		},
		"split": func(l *logsapi.LoggingConfiguration) { l.Options.JSON.SplitStream = true },
	} {
		c := plain(t)
		change(&c.Object.Logging)
		if changes := Changes(&before, &c); len(changes) != 1 || changes[0].Live != (name == "verbosity") {
			t.Errorf("logging %s: changes %+v", name, changes)
		}
	}
}

// read are the fields whose meaning counts, not their text.
var read = []string{
	"mode", "bindAddress", "healthzBindAddress", "metricsBindAddress", "clusterCIDR", "ipvs.excludeCIDRs", "winkernel.sourceVip", "nodePortAddresses", "iptables.localhostNodePorts",
}

// other returns a value that differs.
func other(t *testing.T, v reflect.Value) reflect.Value {
	t.Helper()
	switch x := v.Interface().(type) {
	case bool:
		return reflect.ValueOf(!x)
	case netip.Addr:
		return reflect.ValueOf(netip.MustParseAddr("192.0.2.1"))
	case netip.AddrPort:
		return reflect.ValueOf(netip.MustParseAddrPort("192.0.2.1:1"))
	case []netip.Prefix:
		return reflect.ValueOf([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")})
	case []string:
		return reflect.ValueOf([]string{"x"})
	case metav1.Duration:
		return reflect.ValueOf(metav1.Duration{Duration: 12345})
	case logsapi.VModuleConfiguration:
		return reflect.ValueOf(logsapi.VModuleConfiguration{{FilePattern: "x", Verbosity: 1}})
	}
	if v.Kind() == reflect.Pointer {
		p := reflect.New(v.Type().Elem())
		p.Elem().Set(other(t, p.Elem()))
		return p
	}
	switch v.Kind() {
	case reflect.String:
		return reflect.ValueOf("x").Convert(v.Type())
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32:
		return reflect.ValueOf(12345).Convert(v.Type())
	case reflect.Float32:
		return reflect.ValueOf(1.5).Convert(v.Type())
	default:
		t.Fatalf("no other value for %v", v.Type())
		return v
	}
}

func FuzzDecode(f *testing.F) {
	for _, name := range []string{"kubeadm.yaml", "kube-proxy-defaults.yaml"} {
		data, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("apiVersion: " + apiVersion + "\nkind: " + kind + "\nclusterCIDR: 010.0.0.0/08,::/0\nmode: ipvs\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		in, _, err := Decode(data)
		if err != nil {
			return
		}
		c, err := in.Configuration(NFTables)
		if err != nil {
			return
		}
		// What is in force, written down, asks for the same again.
		text, err := yaml.Marshal(c.Object)
		if err != nil {
			t.Fatal(err)
		}
		in, _, err = Decode(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		again, err := in.Configuration(NFTables)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if changes := Changes(&c, &again); len(changes) > 0 {
			t.Errorf("lost in writing: %v", changes)
		}
	})
}
