package deploy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// prepare mounts what a container runtime mounts: the image's files, which cannot
// be written, what the kernel shows, and the volumes. Each volume is three words:
// what, where, and whether it is rw, ro, or a tmpfs of some size.
const prepare = `set -e
mount --make-rprivate /
root=$1 program=$2
shift 2
mount --bind "$root" "$root"
for d in proc sys dev; do
	mkdir -p "$root/$d"
	mount --rbind "/$d" "$root/$d"
done
while [ "$1" != -- ]; do
	if [ -f "$1" ]; then touch "$root$2"; else mkdir -p "$root$2"; fi
	case "$3" in
	rw) mount --bind "$1" "$root$2" ;;
	ro) mount --bind "$1" "$root$2" && mount -o remount,bind,ro "$root$2" ;;
	*) mount -t tmpfs -o "size=$3" none "$root$2" ;;
	esac
	shift 3
done
shift
mount -o remount,bind,ro "$root"
mount --bind /proc/sys "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
exec "$program" ` + enterContainer + ` "$root" "$@"
`

// enterContainer is the word after which a test's program becomes a container's
// first process.
const enterContainer = "enter-container"

// runInContainer goes into a folder for good, keeps some capabilities and becomes
// a program there. Words: the folder, the numbers of capabilities, and the command.
func runInContainer(words []string) error {
	runtime.LockOSThread() // capabilities are a thread's
	kept := map[string]bool{}
	for _, c := range strings.Split(words[1], ",") {
		kept[c] = true
	}
	for c := range unix.CAP_LAST_CAP + 1 {
		if kept[strconv.Itoa(c)] {
			continue
		}
		// An older kernel does not know them all.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid new privileges: %w", err)
	}
	if err := unix.Chroot(words[0]); err != nil {
		return fmt.Errorf("go into %s: %w", words[0], err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return fmt.Errorf("run %v: %w", words[2:], unix.Exec(words[2], words[2:], []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}))
}

// numbers are what the kernel calls capabilities.
var numbers = map[corev1.Capability]int{
	"NET_ADMIN": unix.CAP_NET_ADMIN, "NET_RAW": unix.CAP_NET_RAW, "BPF": unix.CAP_BPF, "PERFMON": unix.CAP_PERFMON,
}

// bounding returns capabilities as a container's first process is told of them.
func bounding(t *testing.T, capabilities []corev1.Capability) string {
	t.Helper()
	var out []string
	for _, c := range capabilities {
		n, ok := numbers[c]
		if !ok {
			t.Fatalf("nobody knows capability %s here", c)
		}
		out = append(out, strconv.Itoa(n))
	}
	return strings.Join(out, ",")
}

// container returns the words that run a container of a release as the kubelet
// has it run. Paths of the host are as given, by volume, as no test is to touch
// this host's; the folder of manifests is the one thing that a cluster would not have.
func container(t *testing.T, r *release, c *corev1.Container, capabilities []corev1.Capability, host map[string]string, manifests string) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	words := []string{"--mount", "sh", "-c", prepare, "sh", rootfs(t, c.Image), self, manifests, "/manifests", "ro"}
	for _, m := range c.VolumeMounts {
		v := r.volume(m.Name)
		access := map[bool]string{true: "ro", false: "rw"}[m.ReadOnly]
		switch {
		case v.ConfigMap != nil:
			words = append(words, mounted(t, r), m.MountPath, access)
		case v.EmptyDir != nil:
			words = append(words, "none", m.MountPath, strconv.FormatInt(v.EmptyDir.SizeLimit.Value(), 10))
		default:
			from, ok := host[m.Name]
			if !ok {
				t.Fatalf("volume %s is nothing that this test has", m.Name)
			}
			words = append(words, from, m.MountPath, access)
		}
	}
	words = append(words, "--", bounding(t, capabilities))
	words = append(words, c.Command...)
	return append(append(words, arguments(c, mount(c, "config").MountPath)...), "--manifests=/manifests")
}

// lockOf makes a file to be the host's xtables lock.
func lockOf(t *testing.T) string {
	t.Helper()
	lock := filepath.Join(t.TempDir(), "xtables.lock")
	if err := os.WriteFile(lock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return lock
}
