package app

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// execute runs the command and returns what it printed.
func execute(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := NewProxyCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// TestErrors wants each mistake named, in one line, before anything is done.
func TestErrors(t *testing.T) {
	// Nobody may be in a cluster by accident.
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	dir := t.TempDir()
	file := filepath.Join(dir, "file.yaml")
	if err := os.WriteFile(file, []byte("not a kubeconfig: ["), 0o600); err != nil {
		t.Fatal(err)
	}
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
		{"an argument", []string{"serve"}, `unexpected argument "serve": sluice takes flags only`},
		{"no source", nil, `nowhere to read Services from: give --manifests DIR, --kubeconfig FILE or --master URL, ` +
			`or run in a cluster`},
		{
			"mode to come",
			[]string{"--manifests", dir, "--proxy-mode=iptables"},
			`--proxy-mode "iptables": mode iptables is not built yet; modes: nftables`,
		},
		{
			"unknown mode",
			[]string{"--manifests", dir, "--proxy-mode=magic"},
			`--proxy-mode "magic": no such mode; modes: nftables`,
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
			`--pod-bridge-interface "": needed by mode BridgeInterface`,
		},
		{
			"no prefix",
			[]string{"--manifests", dir, "--detect-local-mode=InterfaceNamePrefix"},
			`--pod-interface-name-prefix "": needed by mode InterfaceNamePrefix`,
		},
		{
			"bad NodePort address",
			[]string{"--manifests", dir, "--nodeport-addresses=192.0.2.1"},
			`--nodeport-addresses "192.0.2.1": "192.0.2.1" is neither a CIDR like 192.0.2.0/24 nor the word "primary"`,
		},
		{
			"primary and more",
			[]string{"--manifests", dir, "--nodeport-addresses=primary,10.0.0.0/8"},
			`--nodeport-addresses "primary,10.0.0.0/8": "primary" must stand alone`,
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
			`--bind-address "node": not an IP address; --proxy-mode "magic": no such mode; modes: nftables`,
		},
		{
			"unknown log format",
			[]string{"--manifests", dir, "--logging-format=xml"},
			`logging flags: format: Invalid value: "xml": Unsupported log format`,
		},
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
				t.Errorf("printed besides: %s", out)
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
	NewProxyCommand().Flags().VisitAll(func(f *pflag.Flag) {
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

func TestEmptyArgumentsDoNoHarm(t *testing.T) {
	if err := noArguments(nil, []string{"", ""}); err != nil {
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
		o.Kubeconfig, o.Master = file, tt.master
		from, err := o.origin()
		if err != nil || from.String() != tt.want {
			t.Errorf("master %q: %v, error %v, want %v", tt.master, from, err, tt.want)
		}
	}
}
