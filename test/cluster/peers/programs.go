package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"sluice/test/cluster/build"
	"sluice/test/cluster/peers/figures"
	"sluice/test/cluster/process"
)

// proxies are those that can be measured, with the folder, below this module, of
// the module that says the version. One without is built from the tree.
var proxies = map[string]string{"sluice": "", "kube-proxy-1.37": ".", "kube-proxy-1.36": "kubeproxy136"}

// programs are the paths of everything that runs.
type programs struct {
	etcd, apiServer string
	watcher         string            // this program
	proxies         map[string]string // by the names that peers have
}

// build builds what this run needs and the cache does not have.
func (b *benchmark) build(ctx context.Context, dir string) (err error) {
	root := filepath.Join(dir, "..", "..")
	builder := build.Builder{Module: dir, Cache: filepath.Join(root, ".cache"), Say: b.say}
	if b.programs.etcd, err = builder.Foreign(ctx, build.Etcd()); err != nil {
		return err
	}
	if b.programs.apiServer, err = builder.Foreign(ctx, build.Kubernetes("kube-apiserver")); err != nil {
		return err
	}
	if b.programs.watcher, err = os.Executable(); err != nil {
		return err
	}
	b.programs.proxies = map[string]string{}
	for _, peer := range list(b.peers) {
		name, _, _ := strings.Cut(peer, "/")
		if b.programs.proxies[name] != "" {
			continue
		}
		if folder := proxies[name]; folder == "" {
			b.say("building " + name + " from the tree")
			b.programs.proxies[name], err = builder.Daemon(ctx, root)
		} else {
			of := builder
			of.Module = filepath.Join(dir, folder)
			b.programs.proxies[name], err = of.Foreign(ctx, build.Kubernetes("kube-proxy"))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// machine describes where the figures come from.
func (b *benchmark) machine(ctx context.Context, dir string) (figures.Machine, error) {
	sizes, err := process.Sizes("/proc/meminfo")
	if err != nil {
		return figures.Machine{}, err
	}
	m := figures.Machine{
		Date: time.Now().UTC().Truncate(time.Second), Kernel: firstLine(ctx, dir, "uname", "-r"),
		CPU: "unknown", CPUs: runtime.NumCPU(), Memory: figures.Bytes(sizes["MemTotal"]),
		Versions: map[string]string{
			"go":             runtime.Version(),
			"etcd":           versionOf(b.programs.etcd),
			"kube-apiserver": versionOf(b.programs.apiServer),
			"nft":            firstLine(ctx, dir, "nft", "--version"),
			"iptables":       firstLine(ctx, dir, "iptables", "--version"),
		},
	}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if found := regexp.MustCompile(`model name\s*: (.*)`).FindSubmatch(text); found != nil {
			m.CPU = string(found[1])
		}
	}
	for name, path := range b.programs.proxies {
		if m.Versions[name] = versionOf(path); proxies[name] == "" {
			m.Versions[name] = firstLine(ctx, dir, "git", "describe", "--tags", "--always", "--dirty")
		}
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

// firstLine is the first line that a program prints, for the record only.
func firstLine(ctx context.Context, dir, name string, args ...string) string {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return "unknown"
	}
	line, _, _ := bytes.Cut(out, []byte("\n"))
	return string(line)
}
