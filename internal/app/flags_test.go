package app

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	clientfeatures "k8s.io/client-go/features"
	"k8s.io/component-base/metrics/legacyregistry"

	"sluice/internal/config"
)

// parse returns the options of a command line.
func parse(t *testing.T, args ...string) *Options {
	t.Helper()
	o := NewOptions()
	if err := newCommand("sluice", o, actions{}).ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return o
}

// configuration returns the configuration of a command line.
func configuration(t *testing.T, args ...string) config.Configuration {
	t.Helper()
	read, err := parse(t, args...).read(config.NFTables)
	if err != nil {
		t.Fatal(err)
	}
	return read.config
}

// kubeProxyFlags are the flags of kube-proxy on Linux and their defaults.
func kubeProxyFlags() map[string]string {
	return map[string]string{
		"config": "", "write-config-to": "", "cleanup": "false", "init-only": "false", "master": "",
		"hostname-override": "", "kubeconfig": "", "kube-api-content-type": "application/vnd.kubernetes.protobuf",
		"kube-api-qps": "5", "kube-api-burst": "10", "feature-gates": "", "proxy-mode": "", "bind-address": "0.0.0.0",
		"bind-address-hard-fail": "false", "healthz-bind-address": "0.0.0.0:10256",
		"metrics-bind-address": "127.0.0.1:10249", "healthz-port": "10256", "metrics-port": "10249",
		"profiling": "false", "show-hidden-metrics-for-version": "", "config-sync-period": "15m0s",
		"cluster-cidr": "", "detect-local-mode": "", "pod-bridge-interface": "", "pod-interface-name-prefix": "",
		"nodeport-addresses": "[]", "masquerade-all": "false", "iptables-masquerade-bit": "14",
		"iptables-localhost-nodeports": "true", "iptables-sync-period": "30s", "iptables-min-sync-period": "1s",
		"ipvs-sync-period": "30s", "ipvs-min-sync-period": "1s", "ipvs-scheduler": "", "ipvs-exclude-cidrs": "[]",
		"ipvs-strict-arp": "false", "ipvs-tcp-timeout": "0s", "ipvs-tcpfin-timeout": "0s", "ipvs-udp-timeout": "0s",
		"oom-score-adj": "-999", "conntrack-max-per-core": "32768", "conntrack-min": "131072",
		"conntrack-tcp-timeout-established": "24h0m0s", "conntrack-tcp-timeout-close-wait": "1h0m0s",
		"conntrack-tcp-be-liberal": "false", "conntrack-udp-timeout": "0s", "conntrack-udp-timeout-stream": "0s",
		"v": "0", "vmodule": "", "logging-format": "text", "log-flush-frequency": "5s",
		"log-json-split-stream": "false", "log-json-info-buffer-size": "0",
		"log-text-split-stream": "false", "log-text-info-buffer-size": "0",
		"boot-id-file": "/proc/sys/kernel/random/boot_id", "machine-id-file": "/etc/machine-id,/var/lib/dbus/machine-id",
		"version": "false", "help": "false",
	}
}

func TestEveryFlagOfKubeProxy(t *testing.T) {
	want := kubeProxyFlags()
	want["manifests"], want["load-balancing"], want["status-socket"] = "", "", "/run/sluice/status.sock" // ours
	want["reject-with-tcp-reset"] = "false"
	want["status-bind-address"], want["status-tls-cert-file"], want["status-tls-private-key-file"] = "", "", ""
	want["userspace-dial-timeout"], want["userspace-dial-retries"], want["userspace-udp-timeout"] = "2s", "3", "1m0s"
	want["userspace-max-connections"], want["userspace-drain-timeout"] = "0", "25s"
	want["service-traffic"], want["service-traffic-endpoints"], want["service-traffic-series"] = "connections", "false", "2000"
	want["allowed-external-ips"], want["allowed-load-balancer-ips"] = "[]", "[]"
	want["cgroup-root"], want["bpf-root"], want["ebpf-fallback"] = "", "/sys/fs/bpf/sluice", "false"
	want["ebpf-untracked-cidrs"] = "[]"
	got := map[string]string{}
	newCommand("sluice", NewOptions(), actions{}).Flags().VisitAll(func(f *pflag.Flag) { got[f.Name] = f.DefValue })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("flags and defaults mismatch (-want +got):\n%s", diff)
	}
}

// TestFlagsReachTheConfiguration sets every flag that corresponds to a field of a
// file, and checks that the field changes.
func TestFlagsReachTheConfiguration(t *testing.T) {
	args := map[string]string{
		"hostname-override": "me",
		"kubeconfig":        "/k", "kube-api-content-type": "application/json", "kube-api-qps": "7", "kube-api-burst": "8",
		"config-sync-period": "1m", "feature-gates": "AllBeta=true", "bind-address": "192.0.2.1", "oom-score-adj": "-5",
		"cluster-cidr": "10.0.0.0/8", "detect-local-mode": "NodeCIDR", "pod-bridge-interface": "br",
		"pod-interface-name-prefix": "veth", "masquerade-all": "true", "nodeport-addresses": "primary",
		"healthz-bind-address": "127.0.0.1", "metrics-bind-address": "127.0.0.1:1", "bind-address-hard-fail": "true",
		"profiling": "true", "show-hidden-metrics-for-version": "1.36", "healthz-port": "0", "metrics-port": "0",
		"conntrack-max-per-core": "1", "conntrack-min": "2", "conntrack-tcp-timeout-established": "3s",
		"conntrack-tcp-timeout-close-wait": "4s", "conntrack-tcp-be-liberal": "true", "conntrack-udp-timeout": "5s",
		"conntrack-udp-timeout-stream": "6s", "iptables-masquerade-bit": "15", "iptables-localhost-nodeports": "false",
		"iptables-sync-period": "7s", "iptables-min-sync-period": "8s", "ipvs-scheduler": "sh",
		"ipvs-strict-arp": "true", "ipvs-tcp-timeout": "9s",
		"ipvs-tcpfin-timeout": "10s", "ipvs-udp-timeout": "11s",
		// These are of another mode, or the default mode itself.
		"ipvs-sync-period": "", "ipvs-min-sync-period": "", "ipvs-exclude-cidrs": "", "proxy-mode": "",
	}
	plain := configuration(t)
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if args[name] == "" {
			continue
		}
		c := configuration(t, "--"+name+"="+args[name])
		if changes := config.Changes(&plain, &c); len(changes) != 1 {
			t.Errorf("--%s=%s changes %v", name, args[name], changes)
		}
	}
	for name := range NewOptions().fields {
		if _, tested := args[name]; !tested {
			t.Errorf("--%s is not tested", name)
		}
	}
}

func TestNoFlagsAreTheDefaults(t *testing.T) {
	got := configuration(t)
	want, err := config.Input{}.Configuration(config.NFTables)
	if err != nil {
		t.Fatal(err)
	}
	if changes := config.Changes(&want, &got); len(changes) > 0 {
		t.Errorf("flags change %v", changes)
	}
	if got.MinSyncPeriod != 0 || got.SyncPeriod != time.Hour {
		t.Errorf("min sync period %v, sync period %v: the defaults of iptables reach nftables", got.MinSyncPeriod, got.SyncPeriod)
	}
}

func TestFlagsForModeIPTables(t *testing.T) {
	if c := configuration(t, "--proxy-mode=iptables"); c.MinSyncPeriod != 0 {
		t.Errorf("min sync period %v though none is asked for", c.MinSyncPeriod)
	}
	if c := configuration(t, "--proxy-mode=iptables", "--iptables-min-sync-period=1s"); c.MinSyncPeriod != time.Second {
		t.Errorf("min sync period %v, want 1s", c.MinSyncPeriod)
	}
}

func TestFlagsForModeNFTables(t *testing.T) {
	c := configuration(t, "--proxy-mode=nftables", "--iptables-min-sync-period=1s", "--iptables-sync-period=30s",
		"--iptables-masquerade-bit=5", "--masquerade-all", "--iptables-localhost-nodeports=false")
	if c.MinSyncPeriod != time.Second || c.SyncPeriod != 30*time.Second || c.MasqueradeBit != 5 || !c.MasqueradeAll ||
		c.LocalhostNodePorts {
		t.Errorf("understood %+v", c)
	}
	if !configuration(t, "--iptables-localhost-nodeports").LocalhostNodePorts {
		t.Error("a flag without a value is not true")
	}
}

func TestGatesBecomeMetrics(t *testing.T) {
	open := func(set map[string]bool) {
		gates, err := config.NewGates(set)
		if err != nil {
			t.Fatal(err)
		}
		applyGates(gates)
	}
	open(map[string]bool{"AllowServiceExternalIPs": false})
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == "kubernetes_feature_enabled" {
				got[m.Label[0].GetValue()+" "+m.Label[1].GetValue()] = m.Gauge.GetValue()
			}
		}
	}
	for name, want := range map[string]float64{"AllowServiceExternalIPs ": 0, "ComponentStatusz BETA": 1, "AllAlpha ALPHA": 0} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s is %v, there: %t, want %v", name, value, ok, want)
		}
	}
	if !clientfeatures.FeatureGates().Enabled(clientfeatures.WatchListClient) {
		t.Error("client-go has lost a default")
	}
	open(map[string]bool{"WatchListClient": false})
	if clientfeatures.FeatureGates().Enabled(clientfeatures.WatchListClient) {
		t.Error("client-go does not see its gate")
	}
}

func TestServersDisabled(t *testing.T) {
	const healthz, metrics = "0.0.0.0:10256", "127.0.0.1:10249"
	tests := []struct{ args, healthz, metrics string }{
		{"", healthz, metrics},
		{"--healthz-bind-address=", "none", metrics},
		{"--metrics-bind-address=", healthz, "none"},
		{"--metrics-bind-address=none --healthz-bind-address=none", "none", "none"},
		{"--healthz-port=0 --metrics-port=0", "none", "none"},
		{"--healthz-port=0 --healthz-bind-address=192.0.2.1:80", "none", metrics},
		// An address that has a port keeps it, as it does in kube-proxy.
		{"--healthz-port=1000 --metrics-port=1001", healthz, metrics},
		{"--healthz-bind-address=192.0.2.1 --healthz-port=1000", "192.0.2.1:1000", metrics},
		{"--healthz-bind-address=:: --metrics-bind-address=::1 --metrics-port=1001", "[::]:10256", "[::1]:1001"},
		// A scraper at the default address finds it whatever the node's address is.
		{"--bind-address=2001:db8::1", healthz, metrics},
	}
	for _, tt := range tests {
		c := configuration(t, strings.Fields(tt.args)...)
		if c.Object.HealthzBindAddress != tt.healthz || c.Object.MetricsBindAddress != tt.metrics {
			t.Errorf("%s: healthz %s, metrics %s, want %s, %s", tt.args,
				c.Object.HealthzBindAddress, c.Object.MetricsBindAddress, tt.healthz, tt.metrics)
		}
		if off := !c.MetricsBindAddress.IsValid(); off != (tt.metrics == "none") {
			t.Errorf("%s: metrics off %t", tt.args, off)
		}
	}
}
