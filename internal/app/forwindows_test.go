package app

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"sluice/internal/config"
	"sluice/internal/dataplane/mode"
)

// windowsConfiguration returns the configuration of a command line on Windows. It
// does not check that Windows has the mode.
func windowsConfiguration(t *testing.T, args ...string) (*Options, config.Configuration, error) {
	t.Helper()
	o := newOptions(systemWindows)
	if err := newCommand("sluice", o, actions{}).ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	var p parsed
	if o.ConfigFile == "" {
		o.readFlags(&p)
	} else if err := o.readFile(&p); err != nil {
		t.Fatal(err)
	}
	c, err := p.input.Configuration(config.Kernelspace)
	return o, c, err
}

// TestEveryFlagOfKubeProxyOnWindows compares the flags with those on Linux, which
// TestEveryFlagOfKubeProxy checks.
func TestEveryFlagOfKubeProxyOnWindows(t *testing.T) {
	flags := func(system string) map[string]string {
		all := map[string]string{}
		newCommand("sluice", newOptions(system), actions{}).Flags().VisitAll(func(f *pflag.Flag) { all[f.Name] = f.DefValue })
		return all
	}
	want := flags("linux")
	maps.DeleteFunc(want, func(name, _ string) bool {
		return strings.HasPrefix(name, "userspace-") || slices.Contains([]string{"cgroup-root", "bpf-root", "ebpf-fallback", "ebpf-untracked-cidrs"}, name)
	})
	maps.Copy(want, map[string]string{
		"windows-service": "false", "source-vip": "", "network-name": "", "enable-dsr": "false",
		"root-hnsendpoint-name": "cbr0", "forward-healthcheck-vip": "false",
		"windows-priorityclass": "NORMAL_PRIORITY_CLASS", // ours
	})
	if diff := cmp.Diff(want, flags(systemWindows)); diff != "" {
		t.Errorf("flags and defaults mismatch (-want +got):\n%s", diff)
	}
}

func TestHelpOnWindowsHasNoLinux(t *testing.T) {
	var out strings.Builder
	cmd := newCommand("sluice", newOptions(systemWindows), actions{})
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"--help"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"--conntrack", "--ipvs", "--oom", "--cgroup", "--userspace"} {
		if strings.Contains(out.String(), word) {
			t.Errorf("help says %q", word)
		}
	}
	if !strings.Contains(out.String(), "--network-name") {
		t.Error("help does not say --network-name")
	}
}

// TestWindowsSettings checks that flags and file give the same settings.
func TestWindowsSettings(t *testing.T) {
	t.Setenv("KUBE_NETWORK", "from the environment")
	all := mode.Kernelspace{
		Network: "pods", SourceVIP: netip.MustParseAddr("10.244.1.2"), DSR: true, RootEndpoint: "root",
		ForwardHealthCheckVIP: true, HealthzPort: 10256,
	}
	for _, tt := range []struct {
		name string
		args []string
		want mode.Kernelspace
	}{
		{"nothing", nil, mode.Kernelspace{Network: "from the environment", RootEndpoint: "cbr0", HealthzPort: 10256}},
		{"no health server", []string{"--healthz-bind-address=none"}, mode.Kernelspace{Network: "from the environment", RootEndpoint: "cbr0"}},
		{"flags", []string{
			"--network-name=pods", "--source-vip=10.244.1.2", "--enable-dsr", "--root-hnsendpoint-name=root", "--forward-healthcheck-vip",
		}, all},
		{"file", []string{"--config", writeFile(t, header+"winkernel: {networkName: pods, sourceVip: 10.244.1.2, enableDSR: true, "+
			"rootHnsEndpointName: root, forwardHealthCheckVip: true}\n")}, all},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, c, err := windowsConfiguration(t, tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, o.settingsOf(c).Kernelspace, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("settings mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWindowsSourceVIP(t *testing.T) {
	for _, ip := range []string{"10.244.1", "0.0.0.0", "::", "fe80::1%eth0"} {
		o, _, err := windowsConfiguration(t, "--source-vip="+ip)
		wrong, ok := err.(config.FieldErrors)
		if !ok {
			t.Errorf("%s: error %v, want one of a field", ip, err)
			continue
		}
		if got, want := o.joinFieldErrors(wrong).Error(), `--source-vip "`+ip+`": must be an IP address`; !strings.HasPrefix(got, want) {
			t.Errorf("error %q, want %q", got, want)
		}
	}
}

// TestRunAsService checks that flag and file can both ask for a service: unlike
// others, the flag applies together with a file, as in kube-proxy.
func TestRunAsService(t *testing.T) {
	asks := writeFile(t, header+"windowsRunAsService: true\n")
	for args, want := range map[string]bool{
		"": false, "--windows-service": true, "--config=" + asks: true, "--windows-service --config=" + writeFile(t, header+""): true,
	} {
		_, c, err := windowsConfiguration(t, strings.Fields(args)...)
		if err != nil || c.Object.WindowsRunAsService != want {
			t.Errorf("%q: %v, error %v; want %v", args, c.Object.WindowsRunAsService, err, want)
		}
	}
}

func TestPriorityClass(t *testing.T) {
	for name, want := range map[string]uint32{normalPriority: 0x20, "HIGH_PRIORITY_CLASS": 0x80} {
		o, _, _ := windowsConfiguration(t, "--windows-priorityclass="+name)
		if got, err := o.Windows.priority(); got != want || err != nil {
			t.Errorf("%s is %#x, error %v; want %#x", name, got, err, want)
		}
	}
	o, c, _ := windowsConfiguration(t, "--windows-priorityclass=high")
	c.Mode = config.NFTables // which this system has
	_, err := o.plan(c)
	if want := `--windows-priorityclass "high": no such class; classes: REALTIME_PRIORITY_CLASS, HIGH_`; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want %s...", err, want)
	}
}
