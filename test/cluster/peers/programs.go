package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sluice/test/cluster/build"
	"sluice/test/cluster/peers/figures"
)

// programs are the paths of everything that runs.
type programs struct {
	etcd, apiServer string
	watcher         string
	paths           map[string]string // of proxies, by the names that peers have
}

// sluice is the peer that is built from the tree.
const sluice = "sluice"

// foreign returns for each proxy of others the folder, below this module, of
// the module that says its version.
func foreign() map[string]string {
	return map[string]string{"kube-proxy-1.37": ".", "kube-proxy-1.36": "kubeproxy136"}
}

// names are those of all proxies.
func names() []string {
	out := []string{sluice}
	for name := range foreign() {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func known(program string) bool { return slices.Contains(names(), program) }

// build builds what this run needs and the cache does not have.
func (c *campaign) build(ctx context.Context, dir string) error {
	root := filepath.Join(dir, "..", "..")
	cache := filepath.Join(root, ".cache")
	b := build.Builder{Module: dir, Cache: cache, Say: c.say}
	var err error
	if c.programs.etcd, err = b.Foreign(ctx, build.Etcd()); err != nil {
		return err
	}
	if c.programs.apiServer, err = b.Foreign(ctx, build.Kubernetes("kube-apiserver")); err != nil {
		return err
	}
	if c.programs.watcher, err = b.Own(ctx, dir, "./peers/watcher", "watcher"); err != nil {
		return err
	}
	c.programs.paths = map[string]string{}
	for _, peer := range list(c.options.peers) {
		name, _, _ := strings.Cut(peer, "/")
		if c.programs.paths[name] != "" {
			continue
		}
		if name == sluice {
			c.say("building sluice from the tree")
			c.programs.paths[name], err = b.Daemon(ctx, root)
		} else {
			of := build.Builder{Module: filepath.Join(dir, foreign()[name]), Cache: cache, Say: c.say}
			c.programs.paths[name], err = of.Foreign(ctx, build.Kubernetes("kube-proxy"))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// machine describes where the figures come from.
func (c *campaign) machine(ctx context.Context, root string) (figures.Machine, error) {
	m := figures.Machine{Date: time.Now().UTC().Truncate(time.Second), CPUs: runtime.NumCPU(), CPU: "unknown"}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, fmt.Errorf("ask for the kernel: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(u.Release[:])
	var s unix.Sysinfo_t
	if err := unix.Sysinfo(&s); err != nil {
		return m, fmt.Errorf("ask for the memory: %w", err)
	}
	m.Memory = figures.Bytes(s.Totalram) * figures.Bytes(s.Unit)
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	m.Versions = map[string]string{
		"go":             runtime.Version(),
		"etcd":           versionOf(c.programs.etcd),
		"kube-apiserver": versionOf(c.programs.apiServer),
		"nft":            said(ctx, root, "nft", "--version"),
		"iptables":       said(ctx, root, "iptables", "--version"),
	}
	for name, path := range c.programs.paths {
		m.Versions[name] = versionOf(path)
	}
	if _, ok := c.programs.paths[sluice]; ok {
		m.Versions[sluice] = said(ctx, root, "git", "describe", "--tags", "--always", "--dirty")
	}
	return m, nil
}

// versionOf reads the version of a foreign program from the folder that the
// cache has it in.
func versionOf(path string) string {
	folder := filepath.Base(filepath.Dir(path))
	if i := strings.LastIndex(folder, "-v"); i >= 0 {
		return folder[i+1:]
	}
	return strconv.Quote(folder)
}

// said is the first line that a program prints, for the record only.
func said(ctx context.Context, dir, name string, args ...string) string {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return "unknown"
	}
	line, _, _ := bytes.Cut(out, []byte("\n"))
	return string(line)
}
