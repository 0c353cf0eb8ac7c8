package guest

import (
	"bufio"
	"crypto/sha256"
	_ "embed" // the guest's first process
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed init.sh
var initScript []byte

// guestPrograms are the guest's programs besides busybox, with their other names.
var guestPrograms = map[string][]string{
	"dash": {"sh"},
	"kmod": {"modprobe", "lsmod", "insmod", "rmmod"},
	"nft":  nil, "ip": nil, "ss": nil, "tc": nil, "ipset": nil, "conntrack": nil, "ipvsadm": nil,
	"xtables-nft-multi": {
		"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore",
		"iptables-nft", "iptables-nft-save", "iptables-nft-restore", "ip6tables-nft", "ip6tables-nft-save", "ip6tables-nft-restore",
	},
	"xtables-legacy-multi": {
		"iptables-legacy", "iptables-legacy-save", "iptables-legacy-restore",
		"ip6tables-legacy", "ip6tables-legacy-save", "ip6tables-legacy-restore",
	},
}

// preloadedModules are loaded before a job starts. The kernel would load most of them on demand,
// which takes time in the middle of a test.
var preloadedModules = strings.Fields(`veth dummy bridge br_netfilter tun sctp sctp_diag tcp_diag udp_diag
nf_tables nf_conntrack nf_conntrack_netlink nf_nat nfnetlink_log nft_chain_nat nft_ct nft_nat nft_masq nft_redir nft_numgen nft_hash
nft_fib nft_fib_ipv4 nft_fib_ipv6 nft_fib_inet nft_reject nft_reject_ipv4 nft_reject_ipv6 nft_reject_inet nft_limit nft_log
nft_counter nft_objref nft_quota nft_tproxy nft_socket nft_compat
ip_tables ip6_tables iptable_filter iptable_nat iptable_mangle ip6table_filter ip6table_nat ip6table_mangle ip_set
ip_vs ip_vs_rr ip_vs_wrr ip_vs_lc ip_vs_wlc ip_vs_lblc ip_vs_lblcr ip_vs_sh ip_vs_dh ip_vs_sed ip_vs_nq ip_vs_mh ip_vs_fo ip_vs_ovf`)

// modulePaths are the modules that go into the image; the others are for hardware that the guest
// does not have.
var modulePaths = []string{
	"net/802", "net/8021q", "net/bridge", "net/core", "net/ipv4", "net/ipv6", "net/llc", "net/netfilter", "net/netlink",
	"net/packet", "net/sched", "net/sctp", "net/unix", "net/xfrm", "lib", "crypto", "arch",
	"drivers/net/veth", "drivers/net/dummy", "drivers/net/tun", "drivers/net/ifb", "drivers/net/vxlan",
}

// image returns the directory with vmlinuz and base.cpio of a kernel.
func (c *Cache) image(version string) (string, error) {
	unlock, err := c.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	tools, err := c.tools()
	if err != nil {
		return "", err
	}
	kernel, err := c.kernel(version)
	if err != nil {
		return "", err
	}
	recipe := fmt.Sprintf("%s%v%v%v", initScript, guestPrograms, preloadedModules, modulePaths)
	name := fmt.Sprintf("images/%s-%x", version, sha256.Sum256([]byte(recipe)))
	return c.dir(name[:len(name)-48], func(dir string) error {
		vmlinuz, err := filepath.Glob(filepath.Join(kernel, "boot", "vmlinuz-*"))
		if len(vmlinuz) == 0 {
			vmlinuz, err = filepath.Glob(filepath.Join(kernel, "usr", "lib", "modules", "*", "vmlinuz"))
		}
		if err != nil || len(vmlinuz) != 1 {
			return fmt.Errorf("find vmlinuz in %s: want one, got %v", kernel, vmlinuz)
		}
		i := &image{root: root(tools), dir: dir}
		return errors.Join(os.Link(vmlinuz[0], filepath.Join(dir, "vmlinuz")), i.write(kernel))
	})
}

// image is an image under construction.
type image struct {
	*archive
	root root
	dir  string
}

// write creates base.cpio.
func (i *image) write(kernel string) error {
	f, err := os.Create(filepath.Join(i.dir, "base.cpio"))
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	i.archive = newArchive(w)
	for _, d := range []string{"dev", "proc", "sys", "tmp", "run", "root", "var/run", "results"} {
		i.archive.dir(d)
	}
	i.file("init", 0o755, initScript)
	i.file("etc/modules", 0o644, []byte(strings.Join(preloadedModules, " ")))
	i.file("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\n"))
	i.file("etc/hosts", 0o644, []byte("127.0.0.1 localhost\n::1 localhost\n"))
	err = errors.Join(i.programs(), i.modules(kernel))
	return errors.Join(err, i.close(), w.Flush(), f.Close())
}

// programs packs the programs and the libraries that they need.
func (i *image) programs() error {
	libraries := map[string]string{}
	taken := map[string]bool{"depmod": true}
	for name, links := range guestPrograms {
		taken[name] = true
		from, err := i.root.find(name, programDirs)
		if err != nil {
			return err
		}
		i.tree("bin/"+name, from)
		for _, l := range links {
			taken[l] = true
			i.link("bin/"+l, name)
		}
		if err := i.root.libraries(from, libraries); err != nil {
			return err
		}
	}
	// The kernel runs /sbin/modprobe.
	i.link("sbin/modprobe", "/bin/kmod")
	extensions, err := i.root.find("xtables", libraryDirs)
	if err != nil {
		return err
	}
	i.tree("usr/lib/x86_64-linux-gnu/xtables", extensions)
	for name, from := range libraries {
		i.tree("lib/x86_64-linux-gnu/"+name, from)
	}
	i.link("lib64/"+loader, "/lib/x86_64-linux-gnu/"+loader)
	return i.busybox(taken)
}

// busybox packs busybox, with links for all applets that no other program provides.
func (i *image) busybox(taken map[string]bool) error {
	from, err := i.root.find("busybox", programDirs)
	if err != nil {
		return err
	}
	i.tree("bin/busybox", from)
	out, err := exec.Command(from, "--list").Output()
	for _, name := range strings.Fields(string(out)) {
		if !taken[name] && name != "busybox" {
			i.link("bin/"+name, "busybox")
		}
	}
	return err
}

// modules packs the kernel's modules, decompressed, with their dependency lists.
func (i *image) modules(kernel string) error {
	all, err := filepath.Glob(filepath.Join(kernel, "lib", "modules", "*"))
	if len(all) == 0 {
		all, err = filepath.Glob(filepath.Join(kernel, "usr", "lib", "modules", "*"))
	}
	if err != nil || len(all) != 1 {
		return fmt.Errorf("find the modules in %s: want one directory, got %v", kernel, all)
	}
	release := filepath.Base(all[0])
	work, err := os.MkdirTemp(i.dir, "modules-")
	if err != nil {
		return err
	}
	to := filepath.Join(work, "lib", "modules", release)
	err = copyModules(all[0], to)
	if err == nil {
		err = i.root.decompress(to)
	}
	if err == nil {
		err = i.root.run("kmod", "depmod", "-b", work, release)
	}
	if err == nil {
		i.tree("lib/modules/"+release, to)
	}
	return errors.Join(err, os.RemoveAll(work))
}

// copyModules copies the modules in modulePaths and the lists of built-in modules.
func copyModules(from, to string) error {
	return filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, _ := filepath.Rel(from, p)
		name, isModule := strings.CutPrefix(filepath.ToSlash(rel), "kernel/")
		wanted := slices.ContainsFunc(modulePaths, func(m string) bool {
			return strings.HasPrefix(name, m+"/") || strings.HasPrefix(name, m+".ko")
		})
		if !wanted && (isModule || !strings.HasPrefix(rel, "modules.")) {
			return nil
		}
		content, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		return errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), os.WriteFile(target, content, 0o644))
	})
}
