package main

import (
	"bytes"
	"context"
	"flag"
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

// versions maps each proxy that can be measured to its version of Kubernetes. The empty version is
// built from this repository.
var versions = map[string]string{"sluice": "", "kube-proxy-1.37": "1.37", "kube-proxy-1.36": "1.36"}

// programs are the paths of all programs.
type programs struct {
	etcd, apiServer string
	watcher         string            // this program
	proxies         map[string]string // by program name of a peer
}

// build builds what this run needs and the cache does not have.
func (b *benchmark) build(ctx context.Context, peers string) error {
	builder, err := build.New(b.log)
	if err != nil {
		return err
	}
	if b.etcd, b.apiServer, err = builder.ControlPlane(ctx, build.Newest); err != nil {
		return err
	}
	if b.watcher, err = os.Executable(); err != nil {
		return err
	}
	b.proxies = map[string]string{}
	for _, peer := range list(peers) {
		name, _, _ := strings.Cut(peer, "/")
		if b.proxies[name] != "" {
			continue
		}
		if version := versions[name]; version == "" {
			b.log("building " + name + " from the tree")
			b.proxies[name], err = builder.Daemon(ctx)
		} else if of, failed := builder.Of(version); failed != nil {
			err = failed
		} else {
			b.proxies[name], err = of.Foreign(ctx, build.Kubernetes("kube-proxy"))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// describe records the machine, the versions and the settings.
func (b *benchmark) describe(ctx context.Context, r *figures.Report) error {
	sizes, err := process.Sizes("/proc/meminfo")
	if err != nil {
		return err
	}
	m := figures.Machine{
		Date: time.Now().UTC().Truncate(time.Second), Kernel: firstLine(ctx, "uname", "-r"),
		CPU: "unknown", CPUs: runtime.NumCPU(), Memory: figures.Bytes(sizes["MemTotal"]),
		Versions: map[string]string{
			"go":             runtime.Version(),
			"etcd":           versionOf(b.etcd),
			"kube-apiserver": versionOf(b.apiServer),
			"nft":            firstLine(ctx, "nft", "--version"),
			"iptables":       firstLine(ctx, "iptables", "--version"),
		},
	}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if found := regexp.MustCompile(`model name\s*: (.*)`).FindSubmatch(text); found != nil {
			m.CPU = string(found[1])
		}
	}
	for name, path := range b.proxies {
		if m.Versions[name] = versionOf(path); versions[name] == "" {
			m.Versions[name] = firstLine(ctx, "git", "describe", "--tags", "--always", "--dirty")
		}
	}
	r.SetMachine(m)
	r.Settings = nil
	for _, name := range settings {
		f := flag.Lookup(name)
		r.Settings = append(r.Settings, figures.Setting{Name: f.Usage, Value: f.Value.String()})
	}
	return nil
}

// versionOf returns the version of a foreign program from the name of its cache directory.
func versionOf(path string) string {
	folder := filepath.Base(filepath.Dir(path))
	if i := strings.LastIndex(folder, "-v"); i >= 0 {
		return folder[i+1:]
	}
	return strconv.Quote(folder)
}

// firstLine returns the first line that a program prints, for the record only.
func firstLine(ctx context.Context, name string, args ...string) string {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return "unknown"
	}
	line, _, _ := bytes.Cut(out, []byte("\n"))
	return string(line)
}
