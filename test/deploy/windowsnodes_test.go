package deploy

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/config"
)

// windowsConfiguration returns that of Windows nodes as the daemon reads it.
func windowsConfiguration(t *testing.T, r *release) config.Configuration {
	t.Helper()
	in, warnings, err := config.Decode([]byte(r.configMap.Data["config-windows.conf"]))
	if err != nil || len(warnings) > 0 {
		t.Fatalf("error %v, warnings %q", err, warnings)
	}
	c, err := in.Configuration("")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestWindowsNodes wants a pod that Windows and the API server take: one of the
// host's processes, and nothing that only Linux has.
func TestWindowsNodes(t *testing.T) {
	for name, r := range withWindows(t) {
		t.Run(name, func(t *testing.T) {
			pod := &r.windows.Spec.Template.Spec
			daemon := &pod.Containers[0]
			o := pod.SecurityContext.WindowsOptions
			c := windowsConfiguration(t, r)
			for what, holds := range map[string]bool{
				"os":            pod.OS.Name == corev1.Windows,
				"nodes":         cmp.Equal(pod.NodeSelector, map[string]string{corev1.LabelOSStable: "windows"}),
				"host process":  *o.HostProcess && pod.HostNetwork && *o.RunAsUserName == `NT AUTHORITY\SYSTEM`,
				"nothing else":  cmp.Equal(pod.SecurityContext, &corev1.PodSecurityContext{WindowsOptions: o}) && daemon.SecurityContext == nil && pod.InitContainers == nil,
				"account":       pod.ServiceAccountName == r.serviceAccount.Name,
				"configuration": daemon.Args[0] == "--config="+daemon.VolumeMounts[0].MountPath+"/config-windows.conf" && pod.Volumes[0].ConfigMap.Name == r.configMap.Name,
				"kubeconfig":    c.Object.ClientConnection.Kubeconfig == daemon.VolumeMounts[0].MountPath+"/kubeconfig.conf",
				"mode":          c.Mode == config.Kernelspace && c.Object.Winkernel.NetworkName == "Calico",
				"health":        int32(c.HealthzBindAddress.Port()) == daemon.Ports[0].ContainerPort,
				"nodes of Linux": r.pod().NodeSelector[corev1.LabelOSStable] == "linux" &&
					!slices.ContainsFunc(r.daemon().Args, func(a string) bool { return strings.Contains(a, "windows") }),
			} {
				if !holds {
					t.Errorf("%s: %+v", what, pod)
				}
			}
			for mine, others := range map[*metav1.LabelSelector]map[string]string{
				r.windows.Spec.Selector: r.daemonSet.Spec.Template.Labels, r.daemonSet.Spec.Selector: r.windows.Spec.Template.Labels,
			} {
				selector, err := metav1.LabelSelectorAsSelector(mine)
				if err != nil || selector.Matches(labelSet(others)) {
					t.Errorf("%v selects %v, error %v", selector, others, err)
				}
			}
		})
	}
}

// TestWindowsIsAskedFor wants nothing for Windows unless somebody says so, and then
// the name of a network.
func TestWindowsIsAskedFor(t *testing.T) {
	for name, r := range releases(t) {
		if r.windows.Name != "" || r.configMap.Data["config-windows.conf"] != "" {
			t.Errorf("%s: there is %q", name, r.windows.Name)
		}
	}
	_, err := render(t, "sluice", set(t, "apiServer=https://192.0.2.1:6443", "windows.enabled=true"))
	if want := "windows.winkernel.networkName: say which HNS network"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
}

// TestWindowsValues looks for the values of Windows nodes in their objects.
func TestWindowsValues(t *testing.T) {
	r := helm(t, parsed(t, everyValue))
	pod := &r.windows.Spec.Template.Spec
	daemon, c := &pod.Containers[0], windowsConfiguration(t, r)
	for what, holds := range map[string]bool{
		"image":        daemon.Image == "registry.example/sluice-windows:v2",
		"winkernel":    c.Object.Winkernel.NetworkName == "pods" && c.SourceVIP.String() == "10.244.1.2" && c.Object.Winkernel.EnableDSR,
		"config":       c.HealthzBindAddress.Port() == 1234 && c.Mode == config.Kernelspace,
		"extraArgs":    slices.Contains(daemon.Args, "-v=3") && !slices.Contains(r.daemon().Args, "-v=3"),
		"nodeSelector": pod.NodeSelector["system"] == "windows",
		"name":         r.windows.Name == "123-windows" && r.windows.Spec.Selector.MatchLabels["app.kubernetes.io/name"] == "123-windows",
		"strategy":     r.windows.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue() == 3,
	} {
		if !holds {
			t.Errorf("value %s does not arrive", what)
		}
	}
}
