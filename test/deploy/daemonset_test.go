package deploy

import (
	"cmp"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

// configuration decodes the ConfigMap's, strictly.
func configuration(t *testing.T, r *release) v1alpha1.KubeProxyConfiguration {
	t.Helper()
	var c v1alpha1.KubeProxyConfiguration
	if err := yaml.UnmarshalStrict([]byte(r.configMap.Data["config.conf"]), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestProbes wants every probe where the daemon answers, and none that goes red
// because of the node: see the comment in daemonset.yaml.
func TestProbes(t *testing.T) {
	all := releases(t)
	for name, address := range map[string]string{
		"IPv6": "[::]:1234", "one address": "192.0.2.1:1234", "loopback": "127.0.0.1:1234", "one of IPv6": "[2001:db8::1]:1234",
	} {
		all[name] = helm(t, set(t, "config.healthzBindAddress="+address))
	}
	for name, r := range all {
		t.Run(name, func(t *testing.T) {
			health, err := netip.ParseAddrPort(configuration(t, r).HealthzBindAddress)
			if err != nil {
				t.Fatal(err)
			}
			host := health.Addr().String()
			if health.Addr().IsUnspecified() {
				host = "" // the kubelet asks the node's address then
			}
			port := int32(health.Port())
			c := r.daemon()
			want := []corev1.ContainerPort{{Name: "healthz", ContainerPort: port, HostPort: port}}
			if diff := gocmp.Diff(want, c.Ports); diff != "" {
				t.Errorf("ports (-want +got):\n%s", diff)
			}
			for which, p := range map[string]*corev1.Probe{
				"startup": c.StartupProbe, "liveness": c.LivenessProbe, "readiness": c.ReadinessProbe,
			} {
				want := &corev1.HTTPGetAction{Host: host, Path: "/livez", Port: intstr.FromString("healthz")}
				if diff := gocmp.Diff(want, p.HTTPGet); diff != "" {
					t.Errorf("the %s probe (-want +got):\n%s", which, diff)
				}
			}
			if c.Lifecycle != nil {
				t.Error("there are hooks; the rules stay by themselves")
			}
		})
	}
}

// TestMetricsPort wants a port where others can reach it.
func TestMetricsPort(t *testing.T) {
	for address, want := range map[string]int32{
		"127.0.0.1:10249": 0, "[::1]:10249": 0, "none": 0, "0.0.0.0:1": 1, "[::]:2": 2, "192.0.2.1:3": 3,
	} {
		var got int32
		for _, p := range helm(t, set(t, "config.metricsBindAddress="+address)).daemon().Ports {
			if p.Name == "metrics" && p.HostPort == p.ContainerPort {
				got = p.ContainerPort
			}
		}
		if got != want {
			t.Errorf("%s: port %d, want %d", address, got, want)
		}
	}
}

// TestStatusAddress wants the status API nowhere unless told to, at a loopback
// address without more, and at any other with all that it needs.
func TestStatusAddress(t *testing.T) {
	all := withStatus(t)
	for address, open := range map[string]bool{
		"": false, "127.0.0.1:10246": false, "[::1]:10246": false, "0.0.0.0:10246": true, "[::]:10246": true, "192.0.2.1:10246": true,
	} {
		all[address] = helm(t, set(t, "status.bindAddress="+address, "status.tlsSecret=sluice-status-tls"))
		said := slices.ContainsFunc(all[address].daemon().Args, func(a string) bool { return a == "--status-bind-address="+address })
		if said != (address != "") {
			t.Errorf("%q: arguments %q", address, all[address].daemon().Args)
		}
		if !open {
			if r := all[address]; r.delegation.Name+r.statusReader.Name != "" || mount(r.daemon(), "status-tls") != nil || len(r.daemon().Ports) != 1 {
				t.Errorf("%q: there is more than the flag", address)
			}
			delete(all, address)
		}
	}
	for name, r := range all {
		m := mount(r.daemon(), "status-tls")
		want := &corev1.VolumeMount{Name: "status-tls", MountPath: "/etc/sluice/status-tls", ReadOnly: true}
		if diff := gocmp.Diff(want, m); diff != "" {
			t.Fatalf("%s: the certificate (-want +got):\n%s", name, diff)
		}
		for flag, key := range map[string]string{"--status-tls-cert-file=": corev1.TLSCertKey, "--status-tls-private-key-file=": corev1.TLSPrivateKeyKey} {
			if !slices.Contains(r.daemon().Args, flag+m.MountPath+"/"+key) {
				t.Errorf("%s: no %s in %q", name, flag, r.daemon().Args)
			}
		}
		if secret := r.volume("status-tls").Secret; secret == nil || secret.SecretName != "sluice-status-tls" {
			t.Errorf("%s: the certificate is in %+v", name, secret)
		}
		if mount(r.initial(), "status-tls") != nil {
			t.Errorf("%s: the init container has the certificate", name)
		}
		if r.delegation.Name == "" || r.statusReader.Name == "" {
			t.Errorf("%s: a role or a binding is missing", name)
		}
		port := corev1.ContainerPort{Name: "status", ContainerPort: 10246, HostPort: 10246}
		if !slices.Contains(r.daemon().Ports, port) {
			t.Errorf("%s: ports %+v", name, r.daemon().Ports)
		}
	}
}

// TestPlacement wants the daemon on every Linux node, early and to the last.
func TestPlacement(t *testing.T) {
	for name, r := range releases(t) {
		t.Run(name, func(t *testing.T) {
			pod := r.daemonSet.Spec.Template.Spec
			if pod.PriorityClassName != "system-node-critical" {
				t.Errorf("priority class %q", pod.PriorityClassName)
			}
			if diff := gocmp.Diff([]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, pod.Tolerations); diff != "" {
				t.Errorf("tolerations (-want +got):\n%s", diff)
			}
			if diff := gocmp.Diff(map[string]string{"kubernetes.io/os": "linux"}, pod.NodeSelector); diff != "" {
				t.Errorf("node selector (-want +got):\n%s", diff)
			}
			update := r.daemonSet.Spec.UpdateStrategy
			rolling := update.RollingUpdate
			if update.Type != "RollingUpdate" || rolling.MaxUnavailable == nil || rolling.MaxSurge != nil {
				t.Errorf("update strategy %+v; want a rolling update without surge", update)
			}
			for _, c := range []*corev1.Container{r.initial(), r.daemon()} {
				if len(c.Resources.Requests) != 2 || len(c.Resources.Limits) != 0 {
					t.Errorf("container %s asks for %+v; want requests and no limits", c.Name, c.Resources)
				}
			}
		})
	}
}

// TestCredentials follows the configuration to the kubeconfig and that to what
// the kubelet mounts.
func TestCredentials(t *testing.T) {
	const account = "/var/run/secrets/kubernetes.io/serviceaccount/"
	for name, r := range releases(t) {
		t.Run(name, func(t *testing.T) {
			dir, key := filepath.Split(configuration(t, r).ClientConnection.Kubeconfig)
			if filepath.Clean(dir) != mount(r.daemon(), "config").MountPath {
				t.Errorf("the kubeconfig is read from %s, which is not the volume", dir)
			}
			k, err := clientcmd.Load([]byte(r.configMap.Data[key]))
			if err != nil {
				t.Fatal(err)
			}
			use := k.Contexts[k.CurrentContext]
			if use == nil || k.Clusters[use.Cluster] == nil || k.AuthInfos[use.AuthInfo] == nil {
				t.Fatalf("context %q leads nowhere", k.CurrentContext)
			}
			cluster, user := k.Clusters[use.Cluster], k.AuthInfos[use.AuthInfo]
			if cluster.CertificateAuthority != account+"ca.crt" || cluster.Server != "https://control-plane.invalid:6443" {
				t.Errorf("cluster %+v", cluster)
			}
			if user.TokenFile != account+"token" {
				t.Errorf("user %+v", user)
			}
		})
	}
}

// TestDaemonTakesWhatItIsGiven hands each container's command line to the
// daemon as the kubelet would, and has it write what it understood.
func TestDaemonTakesWhatItIsGiven(t *testing.T) {
	all := releases(t)
	all["iptables"], all["ebpf"], all["status"] = in(t, "iptables")["helm"], in(t, "ebpf")["helm"], withStatus(t)["kustomize"]
	for name, r := range all {
		t.Run(name, func(t *testing.T) {
			for _, c := range []*corev1.Container{r.initial(), r.daemon()} {
				if diff := gocmp.Diff([]string{"/usr/local/bin/sluice"}, c.Command); diff != "" {
					t.Errorf("container %s (-want +got):\n%s", c.Name, diff)
				}
				effective := filepath.Join(t.TempDir(), "effective.yaml")
				args := append(arguments(c, mounted(t, r)), "--write-config-to="+effective)
				out, err := exec.Command(image(t), args...).CombinedOutput()
				if err != nil {
					t.Fatalf("container %s: %v\n%s", c.Name, err, out)
				}
				if strings.Contains(string(out), "unknown or duplicate") {
					t.Errorf("container %s: a part of its configuration is unknown or duplicate:\n%s", c.Name, out)
				}
				compareEffective(t, configuration(t, r), contents(t, effective))
			}
		})
	}
	out, err := exec.Command(image(t), "--config=/dev/null", "--no-such-flag").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--no-such-flag") {
		t.Errorf("a wrong flag goes unnoticed: %v\n%s", err, out)
	}
}

// compareEffective compares what we say with what the daemon took from it.
func compareEffective(t *testing.T, said v1alpha1.KubeProxyConfiguration, effective []byte) {
	t.Helper()
	var took v1alpha1.KubeProxyConfiguration
	if err := yaml.UnmarshalStrict(effective, &took); err != nil {
		t.Fatal(err)
	}
	type fields struct {
		mode            v1alpha1.ProxyMode
		health, metrics string
		oom             int32
	}
	of := func(c v1alpha1.KubeProxyConfiguration) fields {
		return fields{c.Mode, c.HealthzBindAddress, c.MetricsBindAddress, *cmp.Or(c.OOMScoreAdj, ptr(int32(0)))}
	}
	if diff := gocmp.Diff(of(said), of(took), gocmp.AllowUnexported(fields{})); diff != "" {
		t.Errorf("the daemon understood something else (-said +took):\n%s", diff)
	}
}
