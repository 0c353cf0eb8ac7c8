package deploy

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"helm.sh/helm/v4/pkg/strvals"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const (
	root        = "../.." // the repository, from this package's directory
	chartDir    = root + "/deploy/helm/sluice"
	base        = "deploy/kustomize/base"
	replacement = "deploy/kustomize/overlays/replace-kube-proxy"
	components  = "deploy/kustomize/components/"
)

// values is what somebody gives to Helm.
type values = map[string]any

// set reads what somebody would write after --set, one string for each.
func set(t *testing.T, said ...string) values {
	t.Helper()
	out := values{}
	for _, s := range said {
		if err := strvals.ParseInto(s, out); err != nil {
			t.Fatalf("--set %s: %v", s, err)
		}
	}
	return out
}

// parsed reads what somebody would write into a file of values.
func parsed(t *testing.T, text string) values {
	t.Helper()
	out, err := loader.LoadValues(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func openChart(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// render does what helm template does for release RELEASE in kube-system. It
// returns what each template gives.
func render(t *testing.T, release string, v values) (map[string]string, error) {
	t.Helper()
	c := openChart(t)
	all, err := util.ToRenderValues(c, v, common.ReleaseOptions{
		Name: release, Namespace: metav1.NamespaceSystem, Revision: 1, IsInstall: true,
	}, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{}.RenderWithContext(t.Context(), c, all)
	out := map[string]string{}
	for name, text := range files {
		out[path.Base(name)] = text
	}
	return out, err
}

// helm returns the chart's objects with the one value that has no default, and
// others.
func helm(t *testing.T, v values) *release {
	t.Helper()
	if _, ok := v["apiServer"]; !ok {
		v = loader.MergeMaps(values{"apiServer": "https://control-plane.invalid:6443"}, v)
	}
	files, err := render(t, "sluice", v)
	if err != nil {
		t.Fatal(err)
	}
	var manifests [][]byte
	for name, text := range files {
		if path.Ext(name) == ".yaml" && strings.TrimSpace(text) != "" {
			manifests = append(manifests, []byte(text))
		}
	}
	return read(t, manifests)
}

// kustomized does what kubectl kustomize does for a folder, after files of the
// repository have been replaced or added.
func kustomized(t *testing.T, dir string, files map[string]string) [][]byte {
	t.Helper()
	tree := t.TempDir()
	if err := os.CopyFS(filepath.Join(tree, "deploy"), os.DirFS(root+"/deploy")); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		name = filepath.Join(tree, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(tree, dir))
	if err != nil {
		t.Fatal(err)
	}
	var out [][]byte
	for _, r := range resources.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, text)
	}
	return out
}

// release is all that an installation consists of.
type release struct {
	serviceAccount corev1.ServiceAccount
	binding        rbacv1.ClusterRoleBinding
	configMap      corev1.ConfigMap
	daemonSet      appsv1.DaemonSet
	podMonitor     monitoringv1.PodMonitor // without a name: there is none; of the others as well
	prometheusRule monitoringv1.PrometheusRule
	dashboard      corev1.ConfigMap
	delegation     rbacv1.ClusterRoleBinding // of the status API over TCP
	statusReader   rbacv1.ClusterRole
	windows        appsv1.DaemonSet // for those nodes
}

func (r *release) pod() *corev1.PodSpec { return &r.daemonSet.Spec.Template.Spec }

// daemon is the container that stays.
func (r *release) daemon() *corev1.Container { return &r.pod().Containers[0] }

// initial is the container that runs before the daemon.
func (r *release) initial() *corev1.Container { return &r.pod().InitContainers[0] }

// read takes manifests, each into its type and strictly. Every kind must be
// there once, and no other; what is for monitoring, or for the status API over TCP,
// may be missing.
func read(t *testing.T, manifests [][]byte) *release {
	t.Helper()
	var r release
	left := map[string]any{
		"ServiceAccount": &r.serviceAccount, "ClusterRoleBinding": &r.binding,
		"ConfigMap": &r.configMap, "DaemonSet": &r.daemonSet, "PodMonitor": &r.podMonitor,
		"PrometheusRule": &r.prometheusRule, "dashboard": &r.dashboard, "delegation": &r.delegation, "ClusterRole": &r.statusReader,
		"windows": &r.windows,
	}
	for _, m := range manifests {
		var kind metav1.PartialObjectMetadata
		if err := yaml.Unmarshal(m, &kind); err != nil {
			t.Fatalf("%v in\n%s", err, m)
		}
		switch {
		case kind.Kind == "ConfigMap" && strings.HasSuffix(kind.Name, "-dashboard"):
			kind.Kind = "dashboard"
		case kind.Kind == "ClusterRoleBinding" && strings.HasSuffix(kind.Name, "-auth-delegator"):
			kind.Kind = "delegation"
		case kind.Kind == "DaemonSet" && strings.HasSuffix(kind.Name, "-windows"):
			kind.Kind = "windows"
		}
		into, ok := left[kind.Kind]
		if !ok {
			t.Fatalf("a %s that is unexpected or there twice", kind.Kind)
		}
		delete(left, kind.Kind)
		if err := yaml.UnmarshalStrict(m, into); err != nil {
			t.Fatalf("%s: %v in\n%s", kind.Kind, err, m)
		}
	}
	for _, may := range []string{"PodMonitor", "PrometheusRule", "dashboard", "delegation", "ClusterRole", "windows"} {
		delete(left, may)
	}
	if len(left) > 0 {
		t.Fatalf("not there: %v", left)
	}
	if len(r.pod().Containers) != 1 || len(r.pod().InitContainers) != 1 {
		t.Fatalf("%d containers and %d init containers; want one of each", len(r.pod().Containers), len(r.pod().InitContainers))
	}
	return &r
}

// releases returns the installation as each way of installing it gives it.
func releases(t *testing.T) map[string]*release {
	t.Helper()
	return map[string]*release{"kustomize": read(t, kustomized(t, base, nil)), "helm": helm(t, nil)}
}

// in returns it as each way gives it for a mode that the base is not for.
func in(t *testing.T, mode string) map[string]*release {
	t.Helper()
	return map[string]*release{"kustomize": composed(t, mode, mode), "helm": helm(t, set(t, "config.mode="+mode))}
}

// composed returns it as Kustomize gives it for a mode, with components in this order.
func composed(t *testing.T, mode string, names ...string) *release {
	t.Helper()
	const overlay = "deploy/kustomize/overlays/test"
	list := "resources: [../../base]\ncomponents:\n"
	for _, name := range names {
		list += "- ../../components/" + name + "\n"
	}
	config := strings.Replace(string(contents(t, root+"/"+base+"/config.conf")), "mode: nftables", "mode: "+mode, 1)
	return read(t, kustomized(t, overlay, map[string]string{base + "/config.conf": config, overlay + "/kustomization.yaml": list}))
}

// withStatus returns it as each way gives it for a status API that other hosts
// may read, beside mode ebpf, which has flags of its own.
func withStatus(t *testing.T) map[string]*release {
	t.Helper()
	return map[string]*release{
		"kustomize": composed(t, "ebpf", "ebpf", "status"),
		"helm":      helm(t, set(t, "config.mode=ebpf", "status.bindAddress=0.0.0.0:10246", "status.tlsSecret=sluice-status-tls")),
	}
}

// withWindows returns it as each way gives it for a cluster that has Windows nodes, too.
func withWindows(t *testing.T) map[string]*release {
	t.Helper()
	return map[string]*release{
		"kustomize": composed(t, "nftables", "windows"),
		"helm":      helm(t, set(t, "windows.enabled=true", "windows.winkernel.networkName=Calico")),
	}
}

func contents(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// mount returns where a container mounts a volume, and nil if it does not.
func mount(c *corev1.Container, volume string) *corev1.VolumeMount {
	i := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume })
	if i < 0 {
		return nil
	}
	return &c.VolumeMounts[i]
}

// volume returns a volume of the pod, and an empty one if there is none.
func (r *release) volume(name string) corev1.Volume {
	for _, v := range r.pod().Volumes {
		if v.Name == name {
			return v
		}
	}
	return corev1.Volume{}
}
