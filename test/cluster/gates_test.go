package cluster

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sluice/internal/config"
)

// only136 is how many of our gates kube-proxy 1.37 has dropped.
const only136 = 25

// kubeProxy runs the real kube-proxy to its end, in a network of its own.
func kubeProxy(t *testing.T, args ...string) (output string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), bed.KubeProxy(), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestGates compares our feature gates with those of the real kube-proxy: the
// ones that its help lists, the ones that it takes, and the ones that it locks.
func TestGates(t *testing.T) {
	gates, err := config.NewGates(nil)
	if err != nil {
		t.Fatal(err)
	}
	stages, defaults, locks := map[string]string{}, map[string]bool{}, []string{}
	for name, spec := range gates.GetAll() {
		stages[string(name)] = fmt.Sprintf("%s %t", spec.PreRelease, spec.Default)
		defaults[string(name)] = spec.Default
		if spec.LockToDefault {
			locks = append(locks, string(name))
		}
	}
	help, err := kubeProxy(t, "--help")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile(`(\w+)=true\|false \((\w+) - default=(\w+)\)( if)?`).FindAllStringSubmatch(help, -1) {
		listed[m[1]] = true
		if m[4] != "" {
			continue // with a newer control plane than kube-proxy takes for granted
		}
		if want := m[2] + " " + m[3]; stages[m[1]] != want {
			t.Errorf("%s is %q in kube-proxy, here %q", m[1], want, stages[m[1]])
		}
	}
	if len(listed) < 100 {
		t.Errorf("kube-proxy's help lists %d gates only", len(listed))
	}

	dropped := settle(t, defaults)
	if len(dropped) != only136 {
		t.Errorf("kube-proxy does not know %d of our gates, want %d: %v", len(dropped), only136, dropped)
	}
	wrong := map[string]bool{}
	for name := range defaults {
		wrong[name] = !defaults[name]
	}
	out, err := kubeProxy(t, "--feature-gates="+config.GatesText(wrong), "--write-config-to="+filepath.Join(t.TempDir(), "x"))
	if err == nil {
		t.Fatal("kube-proxy takes gates that are locked")
	}
	var locked []string
	for _, m := range regexp.MustCompile(`cannot set feature gate (\w+) to`).FindAllStringSubmatch(out, -1) {
		locked = append(locked, m[1])
	}
	slices.Sort(locked)
	slices.Sort(locks)
	locks = slices.DeleteFunc(locks, func(name string) bool { return slices.Contains(dropped, name) })
	if !slices.Equal(slices.Compact(locked), locks) {
		t.Errorf("kube-proxy locks %v, we lock %v", locked, locks)
	}
}

// settle deletes the gates that kube-proxy does not know, and returns them. It
// takes the others.
func settle(t *testing.T, gates map[string]bool) (dropped []string) {
	t.Helper()
	unknown := regexp.MustCompile(`unrecognized feature gate: (\w+)`)
	for range len(gates) {
		out, err := kubeProxy(t, "--feature-gates="+config.GatesText(gates), "--write-config-to="+filepath.Join(t.TempDir(), "x"))
		if err == nil {
			return dropped
		}
		m := unknown.FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("kube-proxy does not take %s:\n%s", strings.Join(slices.Sorted(maps.Keys(gates)), " "), out)
		}
		delete(gates, m[1])
		dropped = append(dropped, m[1])
	}
	return dropped
}
