package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// tree is the files of an image by path, without a leading slash.
type tree map[string]entry

// entry is a file, a directory or a link.
type entry struct {
	mode int64 // as in tar
	kind byte
	link string
	text []byte
	time time.Time
}

// add adds an entry and its parent directories. It returns an error if the file exists, because two
// packages with the same file do not belong into one image.
func (t tree) add(name string, e entry) error {
	if old, ok := t[name]; ok && (old.kind != tar.TypeDir || e.kind != tar.TypeDir) {
		return fmt.Errorf("add /%s: another package has the same file", name)
	}
	if dir := path.Dir(name); dir != "." && t[dir].kind == 0 {
		if err := t.add(dir, entry{mode: 0o755, kind: tar.TypeDir, time: e.time}); err != nil {
			return err
		}
	}
	if t[name].kind == 0 {
		t[name] = e
	}
	return nil
}

// layer packs the tree: sorted, and owned by root.
func (t tree) layer() (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(t)) {
		e := t[name]
		h := &tar.Header{Name: name, Typeflag: e.kind, Linkname: e.link, Mode: e.mode, Size: int64(len(e.text)), ModTime: e.time, Format: tar.FormatPAX}
		if e.kind == tar.TypeDir {
			h.Name += "/"
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("pack /%s: %w", name, err)
		}
		if _, err := w.Write(e.text); err != nil {
			return nil, fmt.Errorf("pack /%s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching, tarball.WithCompressionLevel(9))
}

// daemonTree returns the static binary with both of its names, and the directories that it writes
// to if nothing is mounted there.
func (r *release) daemonTree(b *program) (tree, error) {
	t := tree{}
	err := errors.Join(
		t.add("usr/local/bin/sluice", entry{mode: 0o755, kind: tar.TypeReg, text: b.text, time: r.date}),
		// With this name it behaves as kube-proxy; kubeadm's DaemonSet starts it by this name.
		t.add("usr/local/bin/kube-proxy", entry{mode: 0o777, kind: tar.TypeSymlink, link: "sluice", time: r.date}),
		t.add("run", entry{mode: 0o755, kind: tar.TypeDir, time: r.date}),
		t.add("tmp", entry{mode: 0o1777, kind: tar.TypeDir, time: r.date}),
	)
	return t, err
}

var (
	kept = regexp.MustCompile(`^((usr/)?s?bin/|(usr/)?lib(32|64)?/|etc/(protocols|services|ethertypes)$|usr/share/doc/[^/]+/copyright$)`)
	left = regexp.MustCompile(`/(gconv|audit|systemd|udev|modprobe\.d|modules-load\.d)/`)
)

// tree unpacks programs, their libraries and licenses, with Debian's modification times, so that
// the layer stays the same as long as the packages do.
func (d *debian) tree() (tree, error) {
	t := tree{}
	var newest time.Time
	for _, p := range d.packages {
		latest, err := p.unpack(t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.path, err)
		}
		newest = later(newest, latest)
		// Scanners look here for Debian packages in images without dpkg.
		if err := t.add("var/lib/dpkg/status.d/"+p.field("Package"), entry{mode: 0o644, kind: tar.TypeReg, text: p.control, time: latest}); err != nil {
			return nil, err
		}
	}
	if err := t.add("etc/os-release", entry{mode: 0o644, kind: tar.TypeReg, text: d.osRelease, time: newest}); err != nil {
		return nil, err
	}
	for _, program := range []string{"iptables", "ip6tables"} { // Debian's default
		for _, verb := range []string{"", "-save", "-restore"} {
			if err := t.add("usr/sbin/"+program+verb, entry{mode: 0o777, kind: tar.TypeSymlink, link: program + "-nft" + verb, time: newest}); err != nil {
				return nil, err
			}
		}
	}
	return t, t.complete()
}

// unpack adds the wanted files of a package and returns the latest modification time.
func (p *debPackage) unpack(t tree) (latest time.Time, err error) {
	text, err := output(exec.Command("dpkg-deb", "--fsys-tarfile", p.path))
	if err != nil {
		return latest, err
	}
	for r := tar.NewReader(bytes.NewReader(text)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return latest, nil
		}
		if err != nil {
			return latest, err
		}
		latest = later(latest, h.ModTime)
		name := path.Clean(h.Name)
		if h.Typeflag == tar.TypeDir || !kept.MatchString(name) || left.MatchString("/"+name) {
			continue
		}
		if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeSymlink {
			return latest, fmt.Errorf("unpack /%s: neither a file nor a symbolic link", name)
		}
		e := entry{mode: h.Mode & 0o777, kind: h.Typeflag, link: h.Linkname, time: h.ModTime}
		if e.text, err = io.ReadAll(r); err != nil {
			return latest, err
		}
		if err := t.add(name, e); err != nil {
			return latest, err
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// complete checks that the tree contains every library that its programs and libraries need.
func (t tree) complete() error {
	has := map[string]bool{}
	for name := range t {
		if strings.Contains(name, "lib") {
			has[path.Base(name)] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t)) {
		f, err := elf.NewFile(bytes.NewReader(t[name].text))
		if err != nil {
			continue // not an ELF file
		}
		needed, err := f.ImportedLibraries()
		if err != nil {
			return fmt.Errorf("/%s: %w", name, err)
		}
		for _, library := range needed {
			if !has[library] {
				return fmt.Errorf("/%s needs %s, which no package has", name, library)
			}
		}
	}
	return nil
}
