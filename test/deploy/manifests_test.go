package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// root is the repository, from this package's directory.
const (
	root        = "../.."
	base        = root + "/deploy/kustomize/base"
	replacement = root + "/deploy/kustomize/overlays/replace-kube-proxy"
)

// release is all that an installation consists of.
type release struct {
	serviceAccount corev1.ServiceAccount
	binding        rbacv1.ClusterRoleBinding
	configMap      corev1.ConfigMap
	daemonSet      appsv1.DaemonSet
}

// daemon is the container that stays.
func (r *release) daemon() *corev1.Container { return &r.daemonSet.Spec.Template.Spec.Containers[0] }

// initial is the container that runs before the daemon.
func (r *release) initial() *corev1.Container {
	return &r.daemonSet.Spec.Template.Spec.InitContainers[0]
}

// releases returns the installation as each way of installing it gives it.
func releases(t *testing.T) map[string]*release {
	t.Helper()
	return map[string]*release{"kustomize": read(t, kustomize(t, base)), "helm": read(t, helm(t, nil))}
}

// read takes manifests, each into its type and strictly. Every kind must be
// there once, and no other.
func read(t *testing.T, manifests [][]byte) *release {
	t.Helper()
	var r release
	left := map[string]any{
		"ServiceAccount": &r.serviceAccount, "ClusterRoleBinding": &r.binding,
		"ConfigMap": &r.configMap, "DaemonSet": &r.daemonSet,
	}
	for _, m := range manifests {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(m, &kind); err != nil {
			t.Fatalf("%v in\n%s", err, m)
		}
		into, ok := left[kind.Kind]
		if !ok {
			t.Fatalf("a %s that is unexpected or there twice", kind.Kind)
		}
		delete(left, kind.Kind)
		if err := yaml.UnmarshalStrict(m, into); err != nil {
			t.Fatalf("%s: %v", kind.Kind, err)
		}
	}
	if len(left) > 0 {
		t.Fatalf("not there: %v", left)
	}
	pod := r.daemonSet.Spec.Template.Spec
	if len(pod.Containers) != 1 || len(pod.InitContainers) != 1 {
		t.Fatalf("%d containers and %d init containers; want one of each", len(pod.Containers), len(pod.InitContainers))
	}
	return &r
}

// kustomization is what we use of the format.
type kustomization struct {
	metav1.TypeMeta `json:",inline"`
	Resources       []string `json:"resources"`
	Images          []struct {
		Name    string `json:"name"`
		NewName string `json:"newName"`
		NewTag  string `json:"newTag"`
	} `json:"images,omitempty"`
}

// kustomize returns the manifests of a folder. A file that is in the folder and
// not in its list would be forgotten, so that is an error.
func kustomize(t *testing.T, dir string) [][]byte {
	t.Helper()
	k := readKustomization(t, dir)
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	listed := []string{filepath.Join(dir, "kustomization.yaml")}
	var out [][]byte
	for _, name := range k.Resources {
		path := filepath.Join(dir, name)
		listed = append(listed, path)
		text := contents(t, path)
		for _, i := range k.Images {
			text = bytes.ReplaceAll(text, []byte("image: "+i.Name+"\n"), []byte("image: "+i.NewName+":"+i.NewTag+"\n"))
		}
		out = append(out, text)
	}
	slices.Sort(listed)
	if diff := cmp.Diff(files, listed); diff != "" {
		t.Errorf("%s: files and list differ (-files +list):\n%s", dir, diff)
	}
	return out
}

func readKustomization(t *testing.T, dir string) kustomization {
	t.Helper()
	var k kustomization
	if err := yaml.UnmarshalStrict(contents(t, filepath.Join(dir, "kustomization.yaml")), &k); err != nil {
		t.Fatal(err)
	}
	if k.APIVersion != "kustomize.config.k8s.io/v1beta1" || k.Kind != "Kustomization" {
		t.Errorf("%s: %s %s is not a Kustomization", dir, k.APIVersion, k.Kind)
	}
	return k
}

func contents(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestReplacementChangesTheImageOnly wants the overlay to say nothing of
// kubeadm's DaemonSet but which image its container runs.
func TestReplacementChangesTheImageOnly(t *testing.T) {
	manifests := kustomize(t, replacement)
	if len(manifests) != 1 {
		t.Fatalf("%d manifests; want one", len(manifests))
	}
	var got any
	if err := yaml.UnmarshalStrict(manifests[0], &got); err != nil {
		t.Fatal(err)
	}
	type object = map[string]any
	want := object{
		"apiVersion": "apps/v1",
		"kind":       "DaemonSet",
		"metadata":   object{"name": "kube-proxy", "namespace": "kube-system"},
		"spec": object{"template": object{"spec": object{"containers": []any{
			object{"name": "kube-proxy", "image": "sluice:latest"},
		}}}},
	}
	if diff := cmp.Diff(any(want), got); diff != "" {
		t.Errorf("the overlay (-want +got):\n%s", diff)
	}
}

// TestObjectsFitTogether follows every name from one object to another.
func TestObjectsFitTogether(t *testing.T) {
	for name, r := range releases(t) {
		t.Run(name, func(t *testing.T) {
			if err := r.check(); err != nil {
				t.Error(err)
			}
		})
	}
}

func (r *release) check() error {
	var errs []error
	want := func(holds bool, format string, args ...any) {
		if !holds {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	account, template := &r.serviceAccount, &r.daemonSet.Spec.Template
	want(r.binding.RoleRef == rbacv1.RoleRef{
		APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "system:node-proxier",
	}, "bound to %+v, not to the role of kube-proxy alone", r.binding.RoleRef)
	want(cmp.Equal(r.binding.Subjects, []rbacv1.Subject{
		{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace},
	}), "the role is given to %+v", r.binding.Subjects)
	want(template.Spec.ServiceAccountName == account.Name, "the pod runs as %q", template.Spec.ServiceAccountName)
	for kind, ns := range map[string]string{
		"ServiceAccount": account.Namespace, "ConfigMap": r.configMap.Namespace, "DaemonSet": r.daemonSet.Namespace,
	} {
		want(ns == "kube-system", "%s in namespace %q", kind, ns)
	}
	want(len(r.daemonSet.Spec.Selector.MatchLabels) > 0, "no selector")
	want(cmp.Equal(r.daemonSet.Spec.Selector.MatchLabels, template.Labels), "the selector %v is not the pod's labels %v",
		r.daemonSet.Spec.Selector.MatchLabels, template.Labels)
	want(len(template.Spec.Volumes) == 1 && template.Spec.Volumes[0].ConfigMap != nil &&
		template.Spec.Volumes[0].ConfigMap.Name == r.configMap.Name, "volumes %+v; want the ConfigMap", template.Spec.Volumes)
	mount := []corev1.VolumeMount{{Name: template.Spec.Volumes[0].Name, MountPath: "/var/lib/kube-proxy", ReadOnly: true}}
	for _, c := range []*corev1.Container{r.initial(), r.daemon()} {
		want(cmp.Equal(c.VolumeMounts, mount), "container %s mounts %+v, not the ConfigMap", c.Name, c.VolumeMounts)
		want(c.Image == "sluice:latest", "container %s has image %q", c.Name, c.Image)
	}
	return errors.Join(errs...)
}
