package guest

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sluice/test/programs"
)

// releases maps kernel versions to the Debian release that has them.
var releases = map[string]string{
	"5.10": "bullseye",
	"6.1":  "bookworm",
	"6.12": "bookworm",
	"7.2":  "sid",
}

// Kernels returns the versions that can be booted, oldest first.
func Kernels() []string { return []string{"5.10", "6.1", "6.12", "7.2"} }

// toolsRelease is the source of QEMU and the guest's programs for all kernels. Its nft 1.0.6 is the
// oldest version that must be able to list our rules.
const toolsRelease = "bookworm"

// tools are the packages to download, with their dependencies.
var tools = []string{
	"qemu-system-x86", "xz-utils", // run on the host
	"busybox-static", "dash", "kmod", "nftables", "iptables", "ipset", "iproute2", "conntrack", "ipvsadm",
}

// Cache is a directory of unpacked packages and the images built from them.
type Cache struct {
	Dir string       // absolute
	Log func(string) // called before slow steps
}

// Open returns the cache of the repository that contains the current directory.
func Open(say func(string)) (*Cache, error) {
	root, err := programs.Root()
	if err != nil {
		return nil, err
	}
	return &Cache{Dir: filepath.Join(root, ".cache", "vm"), Log: say}, nil
}

// lock prevents other processes from filling the cache at the same time.
func (c *Cache) lock() (unlock func(), err error) {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(c.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// dir returns a directory of the cache. If it does not exist, it is filled under a temporary name
// first, so that it is never incomplete.
func (c *Cache) dir(name string, fill func(dir string) error) (string, error) {
	dir := filepath.Join(c.Dir, name)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	c.Log("making " + name)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), ".part-")
	if err != nil {
		return "", err
	}
	if err := fill(part); err != nil {
		return "", errors.Join(fmt.Errorf("make %s: %w", name, err), os.RemoveAll(part))
	}
	return dir, errors.Join(os.Chmod(part, 0o755), os.Rename(part, dir))
}

// apt returns a prepared apt for a release.
func (c *Cache) apt(release string) (apt, error) {
	a := apt{filepath.Join(c.Dir, "apt", release), release}
	return a, a.prepare()
}

// tools returns the directory with all programs.
func (c *Cache) tools() (string, error) {
	return c.dir("tools", func(dir string) error {
		a, err := c.apt(toolsRelease)
		if err != nil {
			return err
		}
		return a.fetch(dir, true, tools...)
	})
}

// kernel returns the directory of an unpacked kernel, the newest of its version.
func (c *Cache) kernel(version string) (string, error) {
	release, ok := releases[version]
	if !ok {
		return "", fmt.Errorf("find kernel %q: unknown version, use one of %s", version, strings.Join(Kernels(), ", "))
	}
	return c.dir("kernels/"+version, func(dir string) error {
		a, err := c.apt(release)
		if err != nil {
			return err
		}
		// The signed image contains everything; since 6.19, image and modules are separate
		// packages.
		for _, kinds := range [][]string{{"linux-binary-", "linux-modules-"}, {"linux-image-"}} {
			names, err := a.names(regexp.MustCompile(`^` + kinds[0] + regexp.QuoteMeta(version) + `\.[0-9+.a-z-]*-cloud-amd64$`))
			if err != nil {
				return err
			}
			if len(names) > 0 {
				rest := strings.TrimPrefix(slices.MaxFunc(names, byVersion), kinds[0])
				for i := range kinds {
					kinds[i] += rest
				}
				c.Log("fetching " + strings.Join(kinds, " "))
				return a.fetch(dir, false, kinds...)
			}
		}
		return fmt.Errorf("%s has no package linux-image-%s.*-cloud-amd64", release, version)
	})
}

var digits = regexp.MustCompile(`\d+`)

// byVersion compares names by the numbers they contain.
func byVersion(a, b string) int {
	return slices.CompareFunc(digits.FindAllString(a, -1), digits.FindAllString(b, -1), func(x, y string) int {
		m, _ := strconv.Atoi(x) // digits
		n, _ := strconv.Atoi(y)
		return cmp.Compare(m, n)
	})
}
