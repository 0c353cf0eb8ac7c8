package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// programs are the packages of the tag -iptables, which also contains their dependencies. kmod
// loads the modules that the legacy variant needs; nft is for administrators.
var programs = []string{"iptables", "kmod", "nftables"}

// debian is the packages for one architecture and their release.
type debian struct {
	osRelease []byte
	packages  []debPackage
}

// debPackage is one .deb file.
type debPackage struct {
	path    string
	sha256  string
	control []byte // in dpkg's format
}

// field returns a field of the control file, or "".
func (p *debPackage) field(name string) string {
	for line := range strings.Lines(string(p.control)) {
		if value, ok := strings.CutPrefix(line, name+": "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// debianPackages reads the packages of an architecture, after downloading them if there are none.
func (r *release) debianPackages(ctx context.Context, arch string) (*debian, error) {
	dir := filepath.Join(r.packages, arch)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := download(ctx, dir, arch); err != nil {
			return nil, fmt.Errorf("download packages for %s: %w", arch, err)
		}
	}
	d := &debian{}
	var err error
	if d.osRelease, err = os.ReadFile(filepath.Join(dir, "os-release")); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("%s has no packages (error: %v)", dir, err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(text)
		p := debPackage{path: path, sha256: hex.EncodeToString(sum[:])}
		if p.control, err = output(exec.CommandContext(ctx, "dpkg-deb", "--field", path)); err != nil {
			return nil, err
		}
		if own := p.field("Architecture"); own != arch && own != "all" {
			return nil, fmt.Errorf("%s is for %s, not for %s", path, own, arch)
		}
		d.packages = append(d.packages, p)
	}
	// Not by file name, because mirrors may encode file names differently.
	slices.SortFunc(d.packages, func(a, b debPackage) int { return strings.Compare(a.field("Package"), b.field("Package")) })
	return d, nil
}

// download downloads the programs and all their dependencies with apt, as if nothing were
// installed. It uses only the sources and keys of this system, so that other architectures need no
// special treatment and the system is not changed.
func download(ctx context.Context, dir, arch string) error {
	work, err := os.MkdirTemp("", "sluice-packages-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	archives := filepath.Join(work, "cache", "archives")
	for _, d := range []string{filepath.Join(work, "lists", "partial"), filepath.Join(archives, "partial")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	status := filepath.Join(work, "status")
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return err
	}
	osRelease, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return err
	}
	preferences := filepath.Join(work, "preferences")
	if err := os.WriteFile(preferences, []byte(prefer(osRelease)), 0o644); err != nil {
		return err
	}
	options := []string{"-q"}
	for _, o := range []string{
		"APT::Architecture=" + arch, "APT::Architectures::=" + arch, "APT::Sandbox::User=root", "Acquire::Languages=none",
		"Dir::State=" + work, "Dir::State::status=" + status, "Dir::Cache=" + filepath.Join(work, "cache"),
		"Dir::Etc::preferences=" + preferences, "Dir::Etc::preferencesparts=/dev/null",
	} {
		options = append(options, "-o", o)
	}
	install := append([]string{"install", "--download-only", "--yes", "--no-install-recommends"}, programs...)
	for _, verb := range [][]string{{"update"}, install} {
		if _, err := output(exec.CommandContext(ctx, "apt-get", append(options, verb...)...)); err != nil {
			return err
		}
	}
	return keep(archives, dir, osRelease)
}

// prefer restricts apt to one Debian release and its updates: nothing from backports, other
// releases or third-party sources of this system.
func prefer(osRelease []byte) string {
	codename := (&debian{osRelease: osRelease}).released("VERSION_CODENAME")
	var out strings.Builder
	for _, suite := range []string{"", "-updates", "-security"} {
		fmt.Fprintf(&out, "Package: *\nPin: release o=Debian,n=%s%s\nPin-Priority: 500\n\n", codename, suite)
	}
	return out.String() + "Package: *\nPin: release o=*\nPin-Priority: -1\n"
}

// keep moves the downloaded packages into place atomically.
func keep(archives, dir string, osRelease []byte) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), "partial-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(part)
	files, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil {
		return err
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(part, filepath.Base(path)), text, 0o644); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(part, "os-release"), osRelease, 0o644); err != nil {
		return err
	}
	if err := os.Chmod(part, 0o755); err != nil {
		return err
	}
	err = os.Rename(part, dir)
	if errors.Is(err, fs.ErrExist) {
		return nil // another process has downloaded them meanwhile
	}
	return err
}

// output runs a program and returns its output; the error contains its standard error.
func output(cmd *exec.Cmd) ([]byte, error) {
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("run %s: %w\n%s", strings.Join(cmd.Args, " "), err, complaint.String())
	}
	return out.Bytes(), nil
}
