package main

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// cached is where tests keep Debian's packages: they need some, not the newest.
const cached = "../../.cache/packages"

// trial is a release that tests build.
func trial() *release {
	return &release{
		version: "v9.8.7-rc.1", commit: strings.Repeat("c0ffee01", 5), date: time.Unix(1.7e9, 0).UTC(), source: "https://example.org/sluice",
		ldflags: "-s -w -X sluice/internal/app.version=v9.8.7-rc.1",
		root:    "../..", packages: cached, arches: []string{"amd64", "arm64"},
	}
}

// builtOnce is that release, built once for all tests.
var builtOnce = sync.OnceValues(func() (*images, error) { return trial().build(context.Background()) })

func built(t *testing.T) *images {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the images, of packages from the network; left out by -short")
	}
	b, err := builtOnce()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// contents returns the files of an image by name.
func contents(t *testing.T, img v1.Image) map[string]file {
	t.Helper()
	flat := mutate.Extract(img)
	defer flat.Close()
	files := map[string]file{}
	for r := tar.NewReader(flat); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[path.Clean(h.Name)] = file{h, text}
	}
}

// file is one of an image.
type file struct {
	*tar.Header
	text []byte
}

// TestIndexes wants all tags for their architectures, told of in
// labels as in annotations.
func TestIndexes(t *testing.T) {
	b := built(t)
	for _, tag := range b.tags() {
		index := b.index(tag)
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		var platforms []string
		for _, d := range manifest.Manifests {
			platforms = append(platforms, d.Platform.String())
		}
		want := []string{"linux/amd64", "linux/arm64/v8"}
		if strings.HasSuffix(tag, "-windows") {
			want = []string{"windows/amd64"}
		}
		if !slices.Equal(platforms, want) {
			t.Errorf("%s is for %v, want %v", tag, platforms, want)
		}
		if got := manifest.Annotations["org.opencontainers.image.version"]; got != tag {
			t.Errorf("the index of %s says version %q", tag, got)
		}
	}
	for _, img := range b.all {
		c, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := img.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{
			"org.opencontainers.image.title": "sluice", "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.description": "A Kubernetes service proxy, in place of kube-proxy",
			"org.opencontainers.image.version":     img.tag, "org.opencontainers.image.revision": b.commit,
			"org.opencontainers.image.created": "2023-11-14T22:13:20Z", "org.opencontainers.image.source": "https://example.org/sluice",
		}
		if !maps.Equal(c.Config.Labels, want) || !maps.Equal(manifest.Annotations, want) {
			t.Errorf("%s: labels %v, annotations %v; want %v", img.fileName(), c.Config.Labels, manifest.Annotations, want)
		}
		entrypoint, user := "/usr/local/bin/sluice", "0"
		if c.OS == "windows" {
			entrypoint, user = "sluice.exe", "" // which the manifests say
		}
		if !slices.Equal(c.Config.Entrypoint, []string{entrypoint}) || c.Config.User != user || !c.Created.Equal(b.date) || c.Architecture != img.program.arch || c.OS != img.program.os || c.OSVersion != "" {
			t.Errorf("%s: configuration %+v", img.fileName(), c)
		}
	}
}

// TestTagsShareTheDaemon wants one layer of the binary for both tags, which is
// pulled once.
func TestTagsShareTheDaemon(t *testing.T) {
	last := map[string]v1.Hash{}
	for _, img := range built(t).all {
		layers, err := img.Layers()
		if err != nil {
			t.Fatal(err)
		}
		digest, err := layers[len(layers)-1].Digest()
		if err != nil {
			t.Fatal(err)
		}
		platform := img.platform().String()
		if old, ok := last[platform]; ok && old != digest {
			t.Errorf("%s: the daemon is %s and %s", platform, old, digest)
		}
		last[platform] = digest
	}
}

// TestPlainImage wants the static binary under both names, and nothing else.
func TestPlainImage(t *testing.T) {
	for _, img := range built(t).all {
		if img.debian != nil || img.program.os == "windows" {
			continue
		}
		files := contents(t, img)
		want := []string{"run", "tmp", "usr", "usr/local", "usr/local/bin", "usr/local/bin/kube-proxy", "usr/local/bin/sluice"}
		if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", img.fileName(), got, want)
		}
		if l := files["usr/local/bin/kube-proxy"]; l.Linkname != "sluice" {
			t.Errorf("kube-proxy leads to %q", l.Linkname)
		}
		if f := files["usr/local/bin/sluice"]; f.Mode != 0o755 || f.Uid != 0 {
			t.Errorf("the binary has mode %o and user %d", f.Mode, f.Uid)
		}
		if mode := files["tmp"].Mode; mode != 0o1777 {
			t.Errorf("/tmp has mode %o", mode)
		}
		checkStatic(t, img.program.arch, files["usr/local/bin/sluice"].text)
	}
}

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

func checkStatic(t *testing.T, arch string, text []byte) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		t.Errorf("the binary for %s is not static", arch)
	}
	if f.Machine != machines[arch] {
		t.Errorf("the binary for %s is for %s", arch, f.Machine)
	}
	info, err := buildinfo.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range info.Settings {
		if strings.HasPrefix(s.Key, "vcs") {
			t.Errorf("the binary tells %s=%s, which depends on where it was built", s.Key, s.Value)
		}
	}
}

// TestIptablesImage wants the programs of both variants and families for the
// right machine, and nobody who may do more than its caller.
func TestIptablesImage(t *testing.T) {
	for _, img := range built(t).all {
		if img.debian == nil {
			continue
		}
		files := contents(t, img)
		for _, family := range []string{"iptables", "ip6tables"} {
			for _, variant := range []string{"", "-nft", "-legacy"} {
				for _, verb := range []string{"", "-save", "-restore"} {
					if _, ok := files["usr/sbin/"+family+variant+verb]; !ok {
						t.Errorf("%s has no %s%s%s", img.fileName(), family, variant, verb)
					}
				}
			}
		}
		for _, name := range []string{"sbin/modprobe", "usr/sbin/nft", "usr/share/doc/iptables/copyright", "var/lib/dpkg/status.d/libc6", "etc/os-release", "etc/protocols"} {
			if _, ok := files[name]; !ok {
				t.Errorf("%s has no /%s", img.fileName(), name)
			}
		}
		for name, f := range files {
			if f.Typeflag == tar.TypeReg && f.Mode&0o7022 != 0 {
				t.Errorf("/%s has mode %o", name, f.Mode)
			}
			if e, err := elf.NewFile(bytes.NewReader(f.text)); err == nil && e.Machine != machines[img.program.arch] {
				t.Errorf("%s: /%s is for %s", img.fileName(), name, e.Machine)
			}
		}
	}
}

// TestRuns starts the programs of every image with nothing but the image around
// them, those of another architecture in an emulator.
func TestRuns(t *testing.T) {
	for _, img := range built(t).all {
		if img.program.os == "windows" {
			continue // test/windows runs it
		}
		root := unpack(t, img)
		prefix := append([]string{"--map-root-user", "chroot", root}, emulate(t, root, img.program.arch)...)
		check := func(program, want string) {
			t.Helper()
			out, err := exec.Command("unshare", append(slices.Clone(prefix), program, "--version")...).CombinedOutput()
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("%s: %s says %q (error: %v), want %q", img.fileName(), program, out, err, want)
			}
		}
		check("/usr/local/bin/sluice", "sluice v9.8.7-rc.1")
		check("/usr/local/bin/kube-proxy", "kube-proxy v9.8.7-rc.1")
		if img.debian != nil {
			check("/usr/sbin/ip6tables-legacy", "(legacy)")
			check("/sbin/modprobe", "kmod")
		}
		if img.debian != nil && img.program.arch == runtime.GOARCH { // emulators know no nf_tables
			check("/usr/sbin/iptables", "(nf_tables)")
			check("/usr/sbin/iptables-nft", "(nf_tables)")
			check("/usr/sbin/nft", "nftables")
		}
	}
}

// emulate puts an emulator into a folder, where programs are for a foreign
// architecture, and returns the words that start it there.
func emulate(t *testing.T, root, arch string) []string {
	t.Helper()
	if arch == runtime.GOARCH {
		return nil
	}
	program := map[string]string{"arm64": "qemu-aarch64-static", "amd64": "qemu-x86_64-static"}[arch]
	where, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("%v; make deps installs it", err)
	}
	text, err := os.ReadFile(where)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, program), text, 0o755); err != nil {
		t.Fatal(err)
	}
	return []string{"/" + program}
}

// unpack writes an image to a folder.
func unpack(t *testing.T, img v1.Image) string {
	t.Helper()
	root := t.TempDir()
	tarball := mutate.Extract(img)
	defer tarball.Close()
	cmd := exec.Command("tar", "-x", "-C", root)
	cmd.Stdin = tarball
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return root
}

// TestTreeRefusals wants no image that lacks a library or has a file of two packages.
func TestTreeRefusals(t *testing.T) {
	self, err := os.ReadFile("/usr/bin/env") // it needs a libc
	if err != nil {
		t.Fatal(err)
	}
	alone := tree{"usr/bin/env": {kind: tar.TypeReg, text: self}}
	if err := alone.complete(); err == nil || !strings.Contains(err.Error(), "/usr/bin/env needs libc") {
		t.Errorf("without a libc: %v", err)
	}
	alone["lib/libc.so.6"] = entry{kind: tar.TypeReg}
	if err := alone.complete(); err != nil {
		t.Error(err)
	}
	twice := entry{kind: tar.TypeReg, text: []byte("x")}
	if err := errors.Join(alone.add("etc/x", twice), alone.add("etc/x", twice)); err == nil || !strings.Contains(err.Error(), "add /etc/x: another package") {
		t.Errorf("twice the same file: %v", err)
	}
}
