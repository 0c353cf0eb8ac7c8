package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/component-base/config/v1alpha1"

	"sluice/internal/config"
)

const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// writeFile writes a file into a new folder and returns its path.
func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// messages returns notices as text, without the key file, which all have.
func messages(list []notice) []string {
	var out []string
	for _, n := range list {
		line := n.message
		for i := 0; i < len(n.keysAndValues); i += 2 {
			if n.keysAndValues[i] != "file" {
				line += " " + n.keysAndValues[i].(string) + "=" + n.keysAndValues[i+1].(string)
			}
		}
		out = append(out, line)
	}
	return out
}

// TestPrecedence gives every flag together with a file: the file takes precedence
// except over flags that always apply, and each ignored flag is reported.
func TestPrecedence(t *testing.T) {
	file := writeFile(t, header+`
hostnameOverride: from-file
clusterCIDR: 10.1.0.0/16
metricsBindAddress: 127.0.0.1:1
clientConnection: {kubeconfig: /from/file}
logging: {verbosity: 1, flushFrequency: 7s, vmodule: [{filePattern: a, verbosity: 1}]}
featureGates: {AllBeta: true}
`)
	o := parse(t, "--config", file, "--cluster-cidr=10.2.0.0/16", "--metrics-port=0", "--kubeconfig=/from/flag",
		"--healthz-bind-address=", "--feature-gates=AllAlpha=true", "--masquerade_all", "--boot-id-file=/x",
		"--hostname-override=from-flag", "--master=http://flag", "--v=4", "--vmodule=b=2,c=3")
	read, err := o.read(config.NFTables)
	if err != nil {
		t.Fatal(err)
	}
	c := read.config
	got := []string{
		c.Object.HostnameOverride, c.ClusterCIDRs[0].String(), c.MetricsBindAddress.String(), c.HealthzBindAddress.String(),
		c.Object.ClientConnection.Kubeconfig, o.Master,
	}
	want := []string{"from-flag", "10.1.0.0/16", "127.0.0.1:1", "0.0.0.0:10256", "/from/file", "http://flag"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("configuration mismatch (-want +got):\n%s", diff)
	}
	if c.MasqueradeAll {
		t.Error("--masquerade-all counts beside a file")
	}
	if diff := cmp.Diff(map[string]bool{"AllBeta": true}, c.Object.FeatureGates); diff != "" {
		t.Errorf("feature gates mismatch (-want +got):\n%s", diff)
	}
	l := c.Object.Logging
	if l.Verbosity != 4 || l.FlushFrequency.Duration.Duration.String() != "7s" {
		t.Errorf("logging %+v: flags must win one by one", l)
	}
	var modules []string
	for _, m := range l.VModule {
		modules = append(modules, m.FilePattern)
	}
	if diff := cmp.Diff([]string{"b", "c", "a"}, modules); diff != "" {
		t.Errorf("modules mismatch (-want +got):\n%s", diff)
	}
	const ignored = "Flag is ignored because there is a configuration file flag=--"
	wantNotices := []string{
		ignored + "kubeconfig value=/from/flag", ignored + "feature-gates value=AllAlpha=true",
		ignored + "cluster-cidr value=10.2.0.0/16", ignored + "masquerade-all value=true",
		ignored + "healthz-bind-address value=", ignored + "metrics-port value=0",
	}
	if diff := cmp.Diff(wantNotices, messages(o.ignoredFlags())); diff != "" {
		t.Errorf("notices mismatch (-want +got):\n%s", diff)
	}
}

func TestLoggingOfAFileWithoutFlags(t *testing.T) {
	file := writeFile(t, header+"logging: {format: json, verbosity: 3}\n")
	if l := configuration(t, "--config", file).Object.Logging; l.Format != "json" || l.Verbosity != 3 {
		t.Errorf("logging %+v", l)
	}
	l := configuration(t, "--config", file, "--logging-format=text").Object.Logging
	if l.Format != "text" || l.Verbosity != 3 {
		t.Errorf("logging %+v, the flag must win", l)
	}
	alpha := header + "logging: {options: {json: {splitStream: true}}}\nfeatureGates: {LoggingAlphaOptions: true}\n"
	if !configuration(t, "--config", writeFile(t, alpha)).Object.Logging.Options.JSON.SplitStream {
		t.Error("the feature gate does not allow the option")
	}
}

func TestNotices(t *testing.T) {
	tests := []struct {
		name, file string
		args, want []string
	}{
		{"unknown fields", "nftables: {speed: 9}\nresourceContainer: /x\n", nil, []string{
			`Part of the configuration file is unknown or duplicate part=unknown field "nftables.speed"`,
			`Part of the configuration file is unknown or duplicate part=unknown field "resourceContainer"`,
		}},
		{"field twice", "mode: nftables\nmode: nftables\n", nil, []string{
			`Part of the configuration file is unknown or duplicate part=line 4: key "mode" already set in map, the last one is used`,
		}},
		{"no file", "", []string{"--metrics-port=9"}, []string{
			"Flag is deprecated flag=--metrics-port instead=--metrics-bind-address",
			"Flag has no effect because the address has a port flag=--metrics-port " +
				"address=--metrics-bind-address=127.0.0.1:10249",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args := tt.args
			if tt.file != "" {
				args = append(args, "--config", writeFile(t, header+tt.file))
			}
			read, err := parse(t, args...).read(config.NFTables)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, messages(read.notices)); diff != "" {
				t.Errorf("notices mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

// TestBadFiles checks that each mistake in a file is reported in one line.
func TestBadFiles(t *testing.T) {
	dir := t.TempDir()
	tests := []struct{ name, text, want string }{
		{"empty", "", `the file is empty`},
		{"half a line", header + "nftables: {syncPeriod: 1", `neither YAML nor JSON: yaml: line 3: did not find expected ',' or '}'`},
		{
			"half a file", "bindAddress: 0.0.0.0\nclientConnection:\n  burst: 0\n",
			`apiVersion "", kind "": both must be there, "kubeproxy.config.k8s.io/v1alpha1" and "KubeProxyConfiguration"`,
		},
		{"half JSON", `{"kind": "KubeProxy`, `neither YAML nor JSON: yaml: found unexpected end of stream`},
		{"a word", "nonsense", `not a KubeProxyConfiguration: json: cannot unmarshal string into Go value of type v1.TypeMeta`},
		{"another kind", "apiVersion: v1\nkind: ConfigMap\n", `kind "ConfigMap": must be "KubeProxyConfiguration"`},
		{
			"another version", "apiVersion: kubeproxy.config.k8s.io/v1beta1\nkind: KubeProxyConfiguration\n",
			`apiVersion "kubeproxy.config.k8s.io/v1beta1": must be "kubeproxy.config.k8s.io/v1alpha1"`,
		},
		{"another type", header + "iptables: {masqueradeBit: many}\n", `read KubeProxyConfiguration: json: cannot unmarshal ` +
			`string into Go struct field KubeProxyIPTablesConfiguration.iptables.masqueradeBit of type int32`},
		{
			"bad period", header + "nftables: {syncPeriod: soon}\n",
			`read KubeProxyConfiguration: time: invalid duration "soon"`,
		},
		{
			"bad values", header + "mode: magic\nnftables: {syncPeriod: -1s}\noomScoreAdj: 2000\nmetricsBindAddress: localhost:80\n",
			`mode "magic": no such mode; modes: nftables, iptables, ipvs, userspace, ebpf; oomScoreAdj "2000": must be from -1000 to 1000; ` +
				`metricsBindAddress "localhost:80": "localhost" is not an IP address`,
		},
		{"blank name", header + "hostnameOverride: '  '\n", `hostnameOverride "  ": a node name cannot be blank`},
		{"logging", header + "logging: {format: xml}\n", `logging.format: Invalid value: "xml": Unsupported log format`},
		{
			"gated logging", header + "logging: {options: {text: {splitStream: true}}}\n",
			`logging.options.text.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled`,
		},
		{"unknown gate", header + "featureGates: {Foo: true}\n", `featureGates "Foo=true": unrecognized feature gate: Foo`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := writeFile(t, tt.text)
			want := `--config "` + file + `": ` + tt.want
			out, err := execute(t, "--config", file, "--manifests", dir)
			if err == nil || err.Error() != want || out != "" {
				t.Errorf("printed %q, error\n%v, want\n%s", out, err, want)
			}
		})
	}
}

func TestUnreadableFile(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{
		dir + "/none": "open " + dir + "/none: no such file or directory",
		dir:           "read " + dir + ": is a directory",
	} {
		_, err := execute(t, "--config", path)
		if want := `--config "` + path + `": ` + want; err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

func TestKubeconfigOfAFileIsNamed(t *testing.T) {
	file := writeFile(t, header+"clientConnection: {kubeconfig: /none/k}\n")
	_, err := execute(t, "--config", file)
	want := `--config "` + file + `": clientConnection.kubeconfig "/none/k": stat /none/k: no such file or directory`
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestFolderOverridesTheFilesKubeconfig(t *testing.T) {
	dir := t.TempDir()
	o := parse(t, "--manifests", dir, "--config", writeFile(t, header))
	from, err := o.objectSource(v1alpha1.ClientConnectionConfiguration{Kubeconfig: "/none"})
	if err != nil || from.String() != "folder "+dir {
		t.Errorf("source %v, error %v", from, err)
	}
	if _, err := parse(t, "--manifests", dir).objectSource(v1alpha1.ClientConnectionConfiguration{Kubeconfig: "/none"}); err == nil ||
		!strings.Contains(err.Error(), "only one can be the source") {
		t.Errorf("error %v, want that two flags contradict", err)
	}
}
