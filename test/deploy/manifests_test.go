package deploy

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"

	"sluice/internal/statusapi"
)

// TestNothingIsForgotten wants every file of a folder named in its
// kustomization.yaml.
func TestNothingIsForgotten(t *testing.T) {
	for _, dir := range []string{base, replacement, components + "iptables", components + "ebpf", components + "status", components + "windows"} {
		list := string(contents(t, root+"/"+dir+"/kustomization.yaml"))
		files, err := filepath.Glob(root + "/" + dir + "/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if name := path.Base(f); name != "kustomization.yaml" && !strings.Contains(list, name+"\n") {
				t.Errorf("%s: %s is in the folder and not in its list", dir, name)
			}
		}
	}
}

// TestComponentsInAnyOrder wants the flags of both, whichever is named first.
func TestComponentsInAnyOrder(t *testing.T) {
	want := slices.Sorted(slices.Values(withStatus(t)["helm"].daemon().Args))
	for _, names := range [][]string{{"ebpf", "status"}, {"status", "ebpf"}} {
		if got := slices.Sorted(slices.Values(composed(t, "ebpf", names...).daemon().Args)); !slices.Equal(got, want) {
			t.Errorf("components %v: flags %q, want %q", names, got, want)
		}
	}
}

// TestReplacementChangesTheImageOnly wants the overlay to say nothing of
// kubeadm's DaemonSet but which image its container runs.
func TestReplacementChangesTheImageOnly(t *testing.T) {
	manifests := kustomized(t, replacement, nil)
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
			object{"name": "kube-proxy", "image": "sluice:latest-iptables"},
		}}}},
	}
	if diff := cmp.Diff(any(want), got); diff != "" {
		t.Errorf("the overlay (-want +got):\n%s", diff)
	}
}

// kubeadms is the DaemonSet that kubeadm 1.37 writes, without what every DaemonSet has.
const kubeadms = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system, labels: {k8s-app: kube-proxy}}
spec:
  selector: {matchLabels: {k8s-app: kube-proxy}}
  template:
    metadata: {labels: {k8s-app: kube-proxy}}
    spec:
      hostNetwork: true
      priorityClassName: system-node-critical
      serviceAccountName: kube-proxy
      tolerations: [{operator: Exists}]
      nodeSelector: {kubernetes.io/os: linux}
      containers:
      - name: kube-proxy
        image: registry.k8s.io/kube-proxy:v1.37.0
        imagePullPolicy: IfNotPresent
        command: [/usr/local/bin/kube-proxy, --config=/var/lib/kube-proxy/config.conf, --hostname-override=$(NODE_NAME)]
        env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        securityContext: {privileged: true}
        volumeMounts:
        - {name: kube-proxy, mountPath: /var/lib/kube-proxy}
        - {name: xtables-lock, mountPath: /run/xtables.lock}
        - {name: lib-modules, mountPath: /lib/modules, readOnly: true}
      volumes:
      - {name: kube-proxy, configMap: {name: kube-proxy}}
      - {name: xtables-lock, hostPath: {path: /run/xtables.lock, type: FileOrCreate}}
      - {name: lib-modules, hostPath: {path: /lib/modules}}
`

// patchOfKubeadm is how kubeadm 1.37 reads from the name of a file which object of its own it
// patches, and by what kind of patch.
var patchOfKubeadm = regexp.MustCompile(`^kubeproxydaemonset[^.+\n]*\+strategic\.(json|yaml)$`)

// TestKubeadmPatch does with the patches what kubeadm does: only the image changes.
func TestKubeadmPatch(t *testing.T) {
	const dir = root + "/deploy/kubeadm/patches"
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 || !patchOfKubeadm.MatchString(files[0].Name()) {
		t.Fatalf("%v: files %v; want one that kubeadm takes for a strategic merge patch of the DaemonSet", err, files)
	}
	object, err := yaml.YAMLToJSONStrict([]byte(kubeadms))
	if err != nil {
		t.Fatal(err)
	}
	patch, err := yaml.YAMLToJSONStrict(contents(t, dir+"/"+files[0].Name()))
	if err != nil {
		t.Fatal(err)
	}
	patched, err := strategicpatch.StrategicMergePatch(object, patch, appsv1.DaemonSet{})
	if err != nil {
		t.Fatal(err)
	}
	var want, got appsv1.DaemonSet
	if err := errors.Join(yaml.UnmarshalStrict(object, &want), yaml.UnmarshalStrict(patched, &got)); err != nil {
		t.Fatal(err)
	}
	want.Spec.Template.Spec.Containers[0].Image = "sluice:latest-iptables"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the DaemonSet (-want +got):\n%s", diff)
	}
}

// TestObjectsFitTogether follows every name from one object to another.
func TestObjectsFitTogether(t *testing.T) {
	for mode, all := range map[string]map[string]*release{
		"nftables": releases(t), "iptables": in(t, "iptables"), "ebpf": in(t, "ebpf"), "status": withStatus(t), "windows": withWindows(t),
	} {
		for name, r := range all {
			t.Run(mode+"/"+name, func(t *testing.T) {
				if err := r.check(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// check follows every name.
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
	if r.delegation.Name != "" {
		want(r.delegation.RoleRef.Name == "system:auth-delegator" && cmp.Equal(r.delegation.Subjects, r.binding.Subjects),
			"role %q is given to %+v", r.delegation.RoleRef.Name, r.delegation.Subjects)
		want(cmp.Equal(r.statusReader.Rules, []rbacv1.PolicyRule{{NonResourceURLs: []string{"/v1/*"}, Verbs: []string{"get"}}}),
			"readers of the status may %+v", r.statusReader.Rules)
	}
	want(template.Spec.ServiceAccountName == account.Name, "the pod runs as %q", template.Spec.ServiceAccountName)
	for kind, ns := range map[string]string{
		"ServiceAccount": account.Namespace, "ConfigMap": r.configMap.Namespace, "DaemonSet": r.daemonSet.Namespace,
	} {
		want(ns == metav1.NamespaceSystem, "%s in namespace %q", kind, ns)
	}
	want(len(r.daemonSet.Spec.Selector.MatchLabels) > 0, "no selector")
	for name, value := range r.daemonSet.Spec.Selector.MatchLabels {
		want(template.Labels[name] == value, "the selector's %s=%s is not among the pod's labels %v", name, value, template.Labels)
	}
	config := r.volume("config")
	want(config.ConfigMap != nil && config.ConfigMap.Name == r.configMap.Name, "volume %+v; want the ConfigMap", config)
	for _, c := range []*corev1.Container{r.initial(), r.daemon()} {
		got := mount(c, config.Name)
		want(cmp.Equal(got, &corev1.VolumeMount{Name: config.Name, MountPath: "/var/lib/kube-proxy", ReadOnly: true}),
			"container %s mounts the ConfigMap as %+v", c.Name, got)
		for _, m := range c.VolumeMounts {
			want(slices.ContainsFunc(template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }),
				"container %s mounts %s, which is no volume", c.Name, m.Name)
		}
		tag := map[bool]string{false: "latest", true: "latest-iptables"}[mount(r.daemon(), "xtables-lock") != nil]
		want(c.Image == "sluice:"+tag, "container %s has image %q", c.Name, c.Image)
	}
	run := mount(r.daemon(), "run")
	want(run != nil && run.MountPath == path.Dir(statusapi.DefaultSocket) && !run.ReadOnly && r.volume("run").EmptyDir != nil,
		"the daemon cannot make its status socket: mount %+v", run)
	return errors.Join(errs...)
}

// TestBaseFollowsItsFiles wants pods to be exchanged when a file changes that a
// running pod does not follow.
func TestBaseFollowsItsFiles(t *testing.T) {
	before := read(t, kustomized(t, base, nil))
	for file, change := range map[string]string{"config.conf": "conntrack: {maxPerCore: 1}\n", "kubeconfig.conf": "preferences: {}\n"} {
		name := base + "/" + file
		after := read(t, kustomized(t, base, map[string]string{name: string(contents(t, root+"/"+name)) + change}))
		if err := after.check(); err != nil {
			t.Error(err)
		}
		if cmp.Equal(before.daemonSet.Spec.Template, after.daemonSet.Spec.Template) {
			t.Errorf("a change of %s does not reach the pods", file)
		}
	}
}
