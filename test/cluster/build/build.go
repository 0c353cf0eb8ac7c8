package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sluice/test/programs"
)

// Program is a command of another project. Its module is a requirement of our
// go.mod, which says the version.
type Program struct {
	Name    string // of the file
	Module  string
	Package string
	Stamp   string // the variable that holds the version; none: the program knows it
}

// Kubernetes returns a command of Kubernetes by its name.
func Kubernetes(name string) Program {
	return Program{
		Name:    name,
		Module:  "k8s.io/kubernetes",
		Package: "k8s.io/kubernetes/cmd/" + name,
		Stamp:   "k8s.io/component-base/version.gitVersion",
	}
}

// every is how often a long build says that it is still at it.
const every = 15 * time.Second

// Builder builds programs.
type Builder struct {
	Module string // folder of the module whose go.mod names the versions
	Root   string // folder of the daemon's module
	Cache  string // folder for what was built
	Say    func(line string)

	windows bool
}

// Newest is the version of Kubernetes of the module that the tests are in.
const Newest = "1.37"

// New returns a builder at the versions of the module that it runs in, which is
// test/cluster: go test runs a package's tests in its folder.
func New(say func(line string)) (Builder, error) {
	dir, err := os.Getwd()
	if err != nil {
		return Builder{}, fmt.Errorf("find the module: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "kubernetes136", "go.mod")); err != nil {
		return Builder{}, fmt.Errorf("run this in test/cluster: %w", err)
	}
	root := filepath.Join(dir, "..", "..")
	return Builder{Module: dir, Root: root, Cache: filepath.Join(root, ".cache"), Say: say}, nil
}

// versions are the folders of the modules that say a version of Kubernetes.
var versions = map[string]string{Newest: ".", "1.36": "kubernetes136"}

// Of returns a builder of another version of Kubernetes.
func (b Builder) Of(version string) (Builder, error) {
	folder, ok := versions[version]
	if !ok {
		return b, fmt.Errorf("no module here says what Kubernetes %s is: there are %v", version, slices.Sorted(maps.Keys(versions)))
	}
	b.Module = filepath.Join(b.Module, folder)
	return b, nil
}

// ForWindows returns a builder of programs for Windows.
func (b Builder) ForWindows() Builder {
	b.windows = true
	return b
}

// file returns the name of a program's file.
func (b Builder) file(name string) string {
	if b.windows {
		return name + ".exe"
	}
	return name
}

// ControlPlane returns the paths of etcd and kube-apiserver, of a version of Kubernetes.
func (b Builder) ControlPlane(ctx context.Context, version string) (etcd, apiServer string, err error) {
	of, err := b.Of(version)
	if err != nil {
		return "", "", err
	}
	const module = "go.etcd.io/etcd/server/v3"
	if etcd, err = b.Foreign(ctx, Program{Name: "etcd", Module: module, Package: module}); err != nil {
		return "", "", err
	}
	apiServer, err = of.Foreign(ctx, Kubernetes("kube-apiserver"))
	return etcd, apiServer, err
}

// Foreign returns the path of a program, which is built if the cache does not
// have this version of it.
func (b Builder) Foreign(ctx context.Context, p Program) (string, error) {
	version, err := b.version(ctx, p.Module)
	if err != nil {
		return "", err
	}
	file := b.file(p.Name)
	path := filepath.Join(b.Cache, file+"-"+version, file)
	unlock, err := lock(path)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	flags := "-s -w"
	if p.Stamp != "" {
		flags += " -X " + p.Stamp + "=" + version
	}
	what := file + " " + version
	b.Say("building " + what + " from the Go module registry (some minutes, once)")
	if err := b.compile(ctx, job{what: what, dir: b.Module, pkg: p.Package, flags: flags, path: path}); err != nil {
		return "", err
	}
	return path, nil
}

// lock prevents other processes from building the same program at the same time,
// which takes minutes.
func lock(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the cache: %w", err)
	}
	f, err := os.Create(path + ".lock")
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

// Daemon returns the path of the daemon of the tree.
func (b Builder) Daemon(ctx context.Context) (string, error) {
	daemon := programs.Daemon
	if b.windows {
		daemon = programs.WindowsDaemon
	}
	path := filepath.Join(b.Cache, b.file("sluice"))
	if err := os.MkdirAll(b.Cache, 0o755); err != nil {
		return "", fmt.Errorf("make the cache: %w", err)
	}
	part := partOf(path)
	if err := daemon.Put(ctx, part); err != nil {
		return "", err
	}
	return path, os.Rename(part, path)
}

// partOf is the name of a file that is not complete yet.
func partOf(path string) string { return fmt.Sprintf("%s.%d", path, os.Getpid()) }

// Own builds a package of a module of ours, under a name.
func (b Builder) Own(ctx context.Context, module, pkg, name string) (string, error) {
	path := filepath.Join(b.Cache, b.file(name))
	if err := b.compile(ctx, job{what: name, dir: module, pkg: pkg, flags: "-s -w", path: path}); err != nil {
		return "", err
	}
	return path, nil
}

// version returns the version of a module that go.mod leads to.
func (b Builder) version(ctx context.Context, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Version}}", module)
	cmd.Dir = b.Module
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ask for the version of %s: %w: %s", module, err, stderr.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}

// job is one run of the compiler.
type job struct {
	what  string // in words
	dir   string // of the module
	pkg   string
	flags string // for the linker
	path  string // of the result
}

// compile builds a package, all of it or nothing. Its priority is low: whoever
// else uses the machine waits less than we do.
func (b Builder) compile(ctx context.Context, j job) error {
	if err := os.MkdirAll(filepath.Dir(j.path), 0o755); err != nil {
		return fmt.Errorf("make the cache: %w", err)
	}
	part := partOf(j.path)
	args := []string{"-n", "10", "go", "build", "-trimpath", "-ldflags", j.flags, "-o", part, j.pkg}
	cmd := exec.CommandContext(ctx, "nice", args...)
	cmd.Dir = j.dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b.windows {
		cmd.Env = append(cmd.Env, "GOOS=windows", "GOARCH=amd64")
	}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	started := time.Now()
	stop := b.progress(j.what, started)
	err := cmd.Run()
	stop()
	if err != nil {
		return fmt.Errorf("build %s: %w\n%s", j.what, err, output.Bytes())
	}
	if took := time.Since(started); took > every {
		b.Say(fmt.Sprintf("built %s in %v", j.what, took.Round(time.Second)))
	}
	if err := os.Rename(part, j.path); err != nil {
		return fmt.Errorf("keep %s: %w", j.what, err)
	}
	return nil
}

// progress reports the time that a build has taken so far until it is stopped.
func (b Builder) progress(what string, started time.Time) (stop func()) {
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				b.Say(fmt.Sprintf("building %s: %v so far", what, time.Since(started).Round(time.Second)))
			}
		}
	}()
	return func() {
		close(done)
		<-stopped
	}
}
