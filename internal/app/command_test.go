package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/config/v1alpha1"
	logsapi "k8s.io/component-base/logs/api/v1"

	"sluice/internal/cli"
	"sluice/internal/config"
	"sluice/internal/dataplane"
)

// execute runs the command and returns what it printed. Actions that would change
// the host fail the test.
func execute(t *testing.T, args ...string) (string, error) {
	t.Helper()
	never := func(what string) error {
		t.Errorf("%q would %s", args, what)
		return errors.New("not in a test")
	}
	return play(t, newCommand("sluice", NewOptions(), actions{
		cleanup: func(context.Context, plan) error { return never("clean") },
		chooseMode: func(context.Context, dataplane.Settings) (config.ProxyMode, error) {
			return config.NFTables, never("choose a mode")
		},
		initialise: func(context.Context, plan) error { return never("initialise") },
		serve:      func(context.Context, plan) error { return never("serve") },
	}), args...)
}

func play(t *testing.T, cmd *cobra.Command, args ...string) (string, error) {
	t.Helper()
	t.Cleanup(func() {
		if err := logsapi.ResetForTest(nil); err != nil {
			t.Error(err)
		}
	})
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// TestErrors checks that each mistake is reported in one line before anything is
// done.
func TestErrors(t *testing.T) {
	// Nobody may be in a cluster by accident.
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	dir := t.TempDir()
	file := filepath.Join(dir, "file.yaml")
	if err := os.WriteFile(file, []byte("not a kubeconfig: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	cert, key, _ := certificate(t)
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"unknown flag", []string{"--nope"}, `unknown flag: --nope (sluice --help lists the flags)`},
		{
			"no boolean",
			[]string{"--masquerade-all=maybe"},
			`invalid argument "maybe" for "--masquerade-all" flag: strconv.ParseBool: parsing "maybe": invalid syntax ` +
				`(sluice --help lists the flags)`,
		},
		{"an argument", []string{"serve"}, `unexpected argument "serve": sluice --help lists commands and flags`},
		{"a mistyped flag", []string{"--cluster-cdir=10.0.0.0/8"}, `unknown flag: --cluster-cdir (did you mean --cluster-cidr? sluice --help lists the flags)`},
		{"a mistyped command", []string{"statsu"}, `unexpected argument "statsu": did you mean sluice status?`},
		{"a mistyped command with its flag", []string{"statsu", "--problems"}, `unexpected argument "statsu": did you mean sluice status?`},
		{"no source", nil, `no source of Services: give --manifests DIR, --kubeconfig FILE or --master URL, ` +
			`or run in a cluster`},
		{
			"unknown mode",
			[]string{"--manifests", dir, "--proxy-mode=magic"},
			`--proxy-mode "magic": no such mode; modes: nftables, iptables, ipvs, userspace, ebpf`,
		},
		{
			"mode of another system",
			[]string{"--manifests", dir, "--proxy-mode=kernelspace"},
			`--proxy-mode "kernelspace": mode kernelspace is for another operating system; modes: nftables, iptables, ipvs, userspace, ebpf`,
		},
		{
			"unknown way to balance",
			[]string{"--manifests", dir, "--load-balancing=rr"},
			`--load-balancing "rr" is not random, round-robin, least-connections, source-hash or maglev`,
		},
		{
			"unknown count of traffic",
			[]string{"--manifests", dir, "--service-traffic=packets"},
			`--service-traffic "packets" is not off, connections or bytes`,
		},
		{
			"a way that the mode does not know",
			[]string{"--manifests", dir, "--proxy-mode=iptables", "--load-balancing=round-robin"},
			`--load-balancing "round-robin": mode iptables does not support it; supported methods: ` + balancingOfModes(),
		},
		{
			"bad cluster CIDR",
			[]string{"--manifests", dir, "--cluster-cidr=10.0.0.0/33"},
			`--cluster-cidr "10.0.0.0/33": "10.0.0.0/33" is not a CIDR like 10.244.0.0/16`,
		},
		{
			"cluster CIDRs of one family",
			[]string{"--manifests", dir, "--cluster-cidr=10.0.0.0/16,10.1.0.0/16"},
			`--cluster-cidr "10.0.0.0/16,10.1.0.0/16": two CIDRs must be one of each family`,
		},
		{
			"underscores",
			[]string{"--manifests", dir, "--cluster_cidr=x"},
			`--cluster-cidr "x": "x" is not a CIDR like 10.244.0.0/16`,
		},
		{
			"unknown local mode",
			[]string{"--manifests", dir, "--detect-local-mode=clustercidr"},
			`--detect-local-mode "clustercidr": no such mode; modes: ` +
				`ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix`,
		},
		{
			"no bridge",
			[]string{"--manifests", dir, "--detect-local-mode=BridgeInterface"},
			`--pod-bridge-interface "": mode BridgeInterface needs it`,
		},
		{
			"no prefix",
			[]string{"--manifests", dir, "--detect-local-mode=InterfaceNamePrefix"},
			`--pod-interface-name-prefix "": mode InterfaceNamePrefix needs it`,
		},
		{
			"bad NodePort address",
			[]string{"--manifests", dir, "--nodeport-addresses=192.0.2.1"},
			`--nodeport-addresses "192.0.2.1": "192.0.2.1" is neither a CIDR like 192.0.2.0/24 nor ` +
				`one of the words primary, localhost and all`,
		},
		{
			"primary and more",
			[]string{"--manifests", dir, "--nodeport-addresses=all,10.0.0.0/8,all"},
			`--nodeport-addresses "all,10.0.0.0/8,all": "all" is there twice`,
		},
		{
			"bad bind address",
			[]string{"--manifests", dir, "--bind-address=node"},
			`--bind-address "node": not an IP address`,
		},
		{
			"blank node name",
			[]string{"--manifests", dir, "--hostname-override=  "},
			`--hostname-override "  ": a node name cannot be blank`,
		},
		{
			"two mistakes",
			[]string{"--manifests", dir, "--bind-address=node", "--proxy-mode=magic"},
			`--proxy-mode "magic": no such mode; modes: nftables, iptables, ipvs, userspace, ebpf; --bind-address "node": not an IP address`,
		},
		{
			"unknown log format",
			[]string{"--manifests", dir, "--logging-format=xml"},
			`logging flags: format: Invalid value: "xml": Unsupported log format`,
		},
		{
			"bad gate",
			[]string{"--feature-gates=Foo"},
			`invalid argument "Foo" for "--feature-gates" flag: malformed pair, expect string=bool ` +
				`(sluice --help lists the flags)`,
		},
		{"unknown gate", []string{"--feature-gates=F oo=true"}, `--feature-gates "F oo=true": unrecognized feature gate: F oo`},
		{
			"locked gate",
			[]string{"--feature-gates=MultiCIDRServiceAllocator=false"},
			`--feature-gates "MultiCIDRServiceAllocator=false": cannot set feature gate MultiCIDRServiceAllocator to false, ` +
				`feature is locked to true`,
		},
		{"hidden metrics", []string{"--show-hidden-metrics-for-version=1.20"}, `--show-hidden-metrics-for-version "1.20": ` +
			`must be 1.36, the minor version before this one, or empty`},
		{"no full sync", []string{"--iptables-sync-period=0"}, `--iptables-sync-period "0s": must be more than 0`},
		{
			"spacing over period",
			[]string{"--iptables-sync-period=1s", "--iptables-min-sync-period=2s"},
			`--iptables-min-sync-period "2s": must not be more than iptables.syncPeriod 1s`,
		},
		{"bit", []string{"--iptables-masquerade-bit=32"}, `--iptables-masquerade-bit "32": must be from 0 to 31`},
		{
			"no number",
			[]string{"--conntrack-min=many"},
			`invalid argument "many" for "--conntrack-min" flag: strconv.ParseInt: parsing "many": invalid syntax ` +
				`(sluice --help lists the flags)`,
		},
		{"negative timeout", []string{"--conntrack-udp-timeout=-1s"}, `--conntrack-udp-timeout "-1s": must not be negative`},
		{"no resync", []string{"--config-sync-period=0"}, `--config-sync-period "0s": must be more than 0`},
		{"address", []string{"--healthz-bind-address=localhost"}, `--healthz-bind-address "localhost": ` +
			`must be an IP address, or an IP address and a port, like 127.0.0.1:10256`},
		{
			"port",
			[]string{"--metrics-bind-address=127.0.0.1", "--metrics-port=70000"},
			`--metrics-bind-address "127.0.0.1:70000": the port must be from 1 to 65535`,
		},
		{
			"contradiction",
			[]string{"--cleanup", "--init-only"},
			`--cleanup and --init-only: one removes what the other prepares for`,
		},
		{"no place to write to", []string{"--write-config-to", dir}, `--write-config-to "` + dir + `": open ` + dir +
			`: is a directory`},
		{
			"two sources",
			[]string{"--manifests", dir, "--kubeconfig", file},
			`--manifests "` + dir + `" and --kubeconfig "` + file + `": only one can be the source`,
		},
		{
			"two sources",
			[]string{"--manifests", dir, "--master", "http://127.0.0.1:1"},
			`--manifests "` + dir + `" and --master "http://127.0.0.1:1": only one can be the source`,
		},
		{
			"no such folder",
			[]string{"--manifests", dir + "/none"},
			`--manifests "` + dir + `/none": open ` + dir + `/none: no such file or directory`,
		},
		{
			"file for a folder",
			[]string{"--manifests", file},
			`--manifests "` + file + `": open ` + file + `: not a directory`,
		},
		{
			"no such kubeconfig",
			[]string{"--kubeconfig", dir + "/none"},
			`--kubeconfig "` + dir + `/none": stat ` + dir + `/none: no such file or directory`,
		},
		{
			"status at no address",
			[]string{"--manifests", dir, "--status-bind-address=127.0.0.1"},
			`--status-bind-address "127.0.0.1": must be an IP address and a port, like 127.0.0.1:10246`,
		},
		{
			"status at port 0",
			[]string{"--manifests", dir, "--status-bind-address=[::1]:0"},
			`--status-bind-address "[::1]:0": must be an IP address and a port, like 127.0.0.1:10246`,
		},
		{
			"status where metrics are",
			[]string{"--manifests", dir, "--status-bind-address=127.0.0.1:10249"},
			`--status-bind-address "127.0.0.1:10249": the metrics server is at 127.0.0.1:10249: use another port`,
		},
		{
			"status where health is, among others",
			[]string{"--manifests", dir, "--status-bind-address=127.0.0.1:10256"},
			`--status-bind-address "127.0.0.1:10256": the health server is at 0.0.0.0:10256: use another port`,
		},
		{
			"status for others without TLS",
			[]string{"--master", "http://127.0.0.1:1", "--status-bind-address=192.0.2.1:10246"},
			`--status-bind-address "192.0.2.1:10246": other hosts can reach it, so it needs --status-tls-cert-file and ` +
				`--status-tls-private-key-file`,
		},
		{
			"status everywhere without TLS",
			[]string{"--master", "http://127.0.0.1:1", "--status-bind-address=[::]:10246"},
			`--status-bind-address "[::]:10246": other hosts can reach it, so it needs --status-tls-cert-file and ` +
				`--status-tls-private-key-file`,
		},
		{
			"status for others without an API server",
			[]string{"--manifests", dir, "--status-bind-address=0.0.0.0:10246", "--status-tls-cert-file", cert, "--status-tls-private-key-file", key},
			`--status-bind-address "0.0.0.0:10246": other hosts can reach it, and with --manifests there is no API server ` +
				`to authorise readers: use a loopback address`,
		},
		{
			"a certificate without a key",
			[]string{"--manifests", dir, "--status-bind-address=127.0.0.1:10246", "--status-tls-cert-file", cert},
			`--status-tls-cert-file and --status-tls-private-key-file: give both or none`,
		},
		{
			"a certificate for nobody",
			[]string{"--manifests", dir, "--status-tls-cert-file", cert, "--status-tls-private-key-file", key},
			`--status-tls-cert-file: needs --status-bind-address`,
		},
		{
			"no such certificate",
			[]string{"--manifests", dir, "--status-bind-address=127.0.0.1:10246", "--status-tls-cert-file", dir + "/none", "--status-tls-private-key-file", key},
			`--status-tls-cert-file "` + dir + `/none" and --status-tls-private-key-file "` + key + `": open ` + dir +
				`/none: no such file or directory`,
		},
		{
			"a key for a certificate",
			[]string{"--manifests", dir, "--status-bind-address=127.0.0.1:10246", "--status-tls-cert-file", key, "--status-tls-private-key-file", key},
			`--status-tls-cert-file "` + key + `" and --status-tls-private-key-file "` + key + `": tls: failed to find certificate ` +
				`PEM data in certificate input, but did find a private key; PEM inputs may have been switched`,
		},
		{
			"no server",
			[]string{"--master", "://"},
			`--master "://": host must be a URL or a host:port pair: "://"`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := execute(t, tt.args...)
			if err == nil || err.Error() != tt.want {
				t.Errorf("error\n%v, want\n%s", err, tt.want)
			}
			if out != "" {
				t.Errorf("printed in addition: %s", out)
			}
		})
	}
}

func TestBrokenKubeconfigIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte("clusters: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := execute(t, "--kubeconfig", file)
	if err == nil || !strings.HasPrefix(err.Error(), `--kubeconfig "`+file+`": `) {
		t.Errorf("error %v does not begin with the flag and the file", err)
	}
}

// TestCompression checks that answers of the API server are compressed unless the
// kubeconfig says otherwise, as for every client.
func TestCompression(t *testing.T) {
	for field, disabled := range map[string]bool{"": false, ", disable-compression: true": true} {
		file := filepath.Join(t.TempDir(), "kubeconfig")
		text := `{clusters: [{name: c, cluster: {server: "http://192.0.2.1"` + field + `}}], contexts: [{name: c, context: {cluster: c}}], current-context: c}`
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		from, err := newOptions("linux").apiServer(v1alpha1.ClientConnectionConfiguration{Kubeconfig: file})
		if err != nil {
			t.Fatal(err)
		}
		if from.config.DisableCompression != disabled {
			t.Errorf("%q: compression is disabled: %t", field, !disabled)
		}
	}
}

func TestHelp(t *testing.T) {
	out, err := execute(t, "--help")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"sluice [flags]", "sluice --manifests ", "sluice --kubeconfig ", "Traffic:", "--nodeport-addresses CIDRS",
		"-v, --v ", "-h, --help",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("help lacks %q", want)
		}
	}
	for line := range strings.Lines(out) {
		if n := len(strings.TrimRight(line, "\n")); n > defaultColumns {
			t.Errorf("a line of %d columns: %s", n, line)
		}
	}
	first, _, _ := strings.Cut(out, "\n")
	if !strings.HasPrefix(first, "Sluice makes ") {
		t.Errorf("help begins with %q", first)
	}
	// Every flag is in some group.
	NewProxyCommand("").Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && !strings.Contains(out, "--"+f.Name) {
			t.Errorf("help lacks --%s", f.Name)
		}
	})
}

func TestVersion(t *testing.T) {
	out, err := execute(t, "--version")
	if err != nil || !strings.HasPrefix(out, "sluice ") || strings.Count(out, "\n") != 1 {
		t.Errorf("printed %q, error %v", out, err)
	}
}

// TestVersionCommand checks that the command prints what the flag does first, and the
// same facts as an object.
func TestVersionCommand(t *testing.T) {
	line, err := execute(t, "--version")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := execute(t, "version"); err != nil || !strings.HasPrefix(out, line) {
		t.Errorf("printed %q, error %v; want %q", out, err, line)
	}
	var i apiversion.Info
	out, err := execute(t, "version", "-o", "json")
	if err != nil || json.Unmarshal([]byte(out), &i) != nil || i != build() || i.GoVersion == "" {
		t.Errorf("printed %s, error %v", out, err)
	}
	if out, err := execute(t, "version", "-o", "yaml"); err != nil || !strings.Contains(out, "\ngoVersion: "+i.GoVersion+"\n") {
		t.Errorf("printed %s, error %v", out, err)
	}
	if _, err := execute(t, "version", "-o", "wide"); exitOf(err) != 2 {
		t.Errorf("another format: %v", err)
	}
}

func TestEmptyArgumentsAreIgnored(t *testing.T) {
	if err := noArguments(NewProxyCommand(""), []string{"", ""}); err != nil {
		t.Error(err)
	}
}

func TestKubeconfigIsRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],
clusters: [{name: k, cluster: {server: "https://192.0.2.1:6443"}}], users: [{name: u, user: {token: t}}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ master, want string }{
		{"", "API server https://192.0.2.1:6443"},
		{"http://192.0.2.2:8080", "API server http://192.0.2.2:8080"},
	}
	for _, tt := range tests {
		o := NewOptions()
		o.Master = tt.master
		from, err := o.objectSource(v1alpha1.ClientConnectionConfiguration{Kubeconfig: file})
		if err != nil || from.String() != tt.want {
			t.Errorf("master %q: %v, error %v, want %v", tt.master, from, err, tt.want)
		}
	}
}

// TestActions checks which actions a command line selects. Only these may access the
// kernel or an API server.
func TestActions(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	dir := t.TempDir()
	tests := []struct {
		name string
		args []string
		want []string
		err  string
	}{
		{"serve", []string{"--manifests", dir}, []string{"choose", "serve nftables"}, ""},
		{"serve, mode given", []string{"--manifests", dir, "--proxy-mode=nftables"}, []string{"serve nftables"}, ""},
		{"prepare", []string{"--init-only"}, []string{"choose", "initialise nftables"}, ""},
		{"prepare, mode given", []string{"--init-only", "--proxy-mode=nftables"}, []string{"initialise nftables"}, ""},
		{"clean", []string{"--cleanup"}, []string{"clean"}, ""},
		{"write", []string{"--write-config-to", dir + "/config"}, nil, ""},
		{"write before all else", []string{"--write-config-to", dir + "/config", "--cleanup"}, nil, ""},
		{"nowhere", nil, nil, "no source of Services: give --manifests DIR, --kubeconfig FILE or --master URL, " +
			"or run in a cluster"},
		{"wrong before anything", []string{"--cleanup", "--proxy-mode=x"}, nil, `--proxy-mode "x": no such mode; modes: nftables, iptables, ipvs, userspace, ebpf`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			did := func(what string) error {
				got = append(got, what)
				return nil
			}
			_, err := play(t, newCommand("sluice", NewOptions(), actions{
				cleanup: func(context.Context, plan) error { return did("clean") },
				chooseMode: func(context.Context, dataplane.Settings) (config.ProxyMode, error) {
					return config.NFTables, did("choose")
				},
				initialise: func(_ context.Context, p plan) error { return did("initialise " + string(p.config.Mode)) },
				serve:      func(_ context.Context, p plan) error { return did("serve " + string(p.config.Mode)) },
			}), tt.args...)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("actions mismatch (-want +got):\n%s", diff)
			}
			if text := errorText(err); text != tt.err {
				t.Errorf("error %q, want %q", text, tt.err)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestNoModeToChoose(t *testing.T) {
	_, err := play(t, newCommand("sluice", NewOptions(), actions{
		chooseMode: func(context.Context, dataplane.Settings) (config.ProxyMode, error) {
			return "", errors.New("no kernel")
		},
	}), "--init-only")
	if errorText(err) != "no kernel" {
		t.Errorf("error %v", err)
	}
}

// TestWrittenConfigIsReadAgain writes the configuration of flags to a file and reads
// it again.
func TestWrittenConfigIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	args := []string{
		"--cluster-cidr=10.0.0.0/8,fd00::/48", "--metrics-bind-address=", "--iptables-min-sync-period=2s", "--masquerade-all",
		"--iptables-masquerade-bit=3", "--nodeport-addresses=all", "--hostname-override=me", "--feature-gates=AllBeta=true",
		"--conntrack-max-per-core=1", "--conntrack-min=2", "--conntrack-tcp-timeout-established=3h",
		"--conntrack-tcp-timeout-close-wait=0", "--vmodule=a=1", "-v=2",
	}
	if _, err := execute(t, append(args, "--write-config-to", file)...); err != nil {
		t.Fatal(err)
	}
	said, written := configuration(t, args...), configuration(t, "--config", file)
	if changes := config.Changes(&said, &written); len(changes) > 0 {
		t.Errorf("lost in writing: %v", changes)
	}
	if diff := cmp.Diff(said.Object, written.Object); diff != "" {
		t.Errorf("object mismatch (-said +written):\n%s", diff)
	}
}

func TestCalledAsKubeProxy(t *testing.T) {
	for name, want := range map[string]string{
		"/usr/local/bin/kube-proxy": "kube-proxy", "kube-proxy": "kube-proxy", "./sluice": "sluice", "proxy": "sluice",
	} {
		out, err := play(t, NewProxyCommand(name), "--version")
		if err != nil || !strings.HasPrefix(out, want+" ") {
			t.Errorf("%s --version printed %q, error %v", name, out, err)
		}
		out, err = play(t, NewProxyCommand(name), "--help")
		if err != nil || !strings.Contains(out, "\n  "+want+" [flags]\n") || !strings.Contains(out, " "+want+" --config ") {
			t.Errorf("%s --help printed %q, error %v", name, out, err)
		}
		_, err = play(t, NewProxyCommand(name), "--nope")
		if errorText(err) != "unknown flag: --nope ("+want+" --help lists the flags)" {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestJSONLog(t *testing.T) {
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	was := os.Stderr
	defer func() { os.Stderr = was }()
	os.Stderr = stderr
	file := filepath.Join(t.TempDir(), "config.yaml")
	if _, err := execute(t, "--write-config-to", file, "--logging-format=json"); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(stderr.Name())
	if err != nil {
		t.Fatal(err)
	}
	var line struct{ Msg, File string }
	if err := json.Unmarshal(text, &line); err != nil || line.Msg != "Wrote the configuration in force" || line.File != file {
		t.Errorf("logged %s, error %v", text, err)
	}
}

// TestFailureInLog checks that the error that ended the daemon is the only error
// line of a JSON log, and is left to the caller in a text log.
func TestFailureInLog(t *testing.T) {
	for format, logFailure := range map[string]bool{"text": false, "json": true} {
		t.Run(format, func(t *testing.T) {
			var log bytes.Buffer
			o := NewOptions()
			o.log = &log
			serve := func(context.Context, plan) error { return errors.New("the kernel has no rules") }
			_, err := play(t, newCommand("sluice", o, actions{serve: serve}), "--manifests="+t.TempDir(), "--proxy-mode=nftables", "-v=1", "--logging-format="+format)
			exit, _ := errors.AsType[*cli.ExitError](err)
			if err == nil || (exit != nil) != logFailure || logFailure && exit.Err != nil {
				t.Errorf("error %v", err)
			}
			failures := 0
			for line := range bytes.Lines(log.Bytes()) {
				failed := bytes.Contains(line, []byte(`"err":"the kernel has no rules"`))
				if got := severity(line); (got == 'E') != failed || !failed && got != 'I' {
					t.Errorf("severity %c of %s", got, line)
				}
				if failed {
					failures++
				}
			}
			if (failures == 1) != logFailure {
				t.Errorf("log %s", &log)
			}
		})
	}
}
