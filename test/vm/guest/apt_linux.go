package guest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// apt downloads packages of one Debian release. It has its own state, cache and sources, and its
// package database is empty.
type apt struct {
	dir     string
	release string // bookworm
}

// debianURI matches the address of Debian's archive in both formats of apt's sources.
var debianURI = regexp.MustCompile(`(?m)^(?:deb\s|URIs:)[^#\n]*?(\S+://\S+/debian)/?(?:\s|$)`)

// mirror returns the archive that this machine uses.
func mirror() (string, error) {
	for _, pattern := range []string{"sources.list", "sources.list.d/*.list", "sources.list.d/*.sources"} {
		files, _ := filepath.Glob(filepath.Join("/etc/apt", pattern)) // fails only for bad patterns
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				return "", err
			}
			if m := debianURI.FindSubmatch(text); m != nil {
				return string(m[1]), nil
			}
		}
	}
	return "", errors.New("find a Debian mirror: no source in /etc/apt ends in /debian")
}

// prepare writes the configuration and downloads the package lists.
func (a apt) prepare() error {
	uri, err := mirror()
	if err != nil {
		return err
	}
	for _, d := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.dir, d), 0o755); err != nil {
			return err
		}
	}
	source := "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
	sources := fmt.Sprintf("%s%s %s main\n", source, uri, a.release)
	if a.release != "sid" { // sid has no security archive
		sources += fmt.Sprintf("%s%s-security %s-security main\n", source, uri, a.release)
	}
	conf := fmt.Sprintf(`Dir::State "%[1]s/state";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s/cache";
Dir::Etc::sourcelist "%[1]s/sources.list";
Dir::Etc::sourceparts "-";
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "3";
`, a.dir)
	for name, text := range map[string]string{"apt.conf": conf, "sources.list": sources, "status": ""} {
		if err := os.WriteFile(filepath.Join(a.dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	_, err = a.run("apt-get", "update", "-q")
	return err
}

// names returns the packages whose names match a pattern, which must begin with a literal prefix.
func (a apt) names(pattern *regexp.Regexp) ([]string, error) {
	prefix, _ := pattern.LiteralPrefix()
	out, err := a.run("apt-cache", "pkgnames", prefix)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(strings.Fields(out), func(n string) bool { return !pattern.MatchString(n) }), nil
}

// fetch downloads packages and unpacks them into a directory, optionally with their dependencies.
func (a apt) fetch(to string, dependencies bool, names ...string) error {
	archives := filepath.Join(a.dir, "cache", "archives")
	cmd := append([]string{"apt-get", "install", "-qy", "--download-only", "--no-install-recommends"}, names...)
	if !dependencies {
		cmd = append([]string{"apt-get", "download", "-q"}, names...)
	}
	if _, err := a.run(cmd...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err == nil && len(debs) == 0 {
		err = fmt.Errorf("fetch %v: apt downloaded nothing", names)
	}
	for _, deb := range debs {
		if err == nil {
			_, err = a.run("dpkg-deb", "-x", deb, to)
		}
		err = errors.Join(err, os.Remove(deb))
	}
	return err
}

// run runs a program and returns its standard output.
func (a apt) run(args ...string) (string, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = filepath.Join(a.dir, "cache", "archives") // where apt-get download leaves packages
	cmd.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(a.dir, "apt.conf"), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, bytes.TrimSpace(problems.Bytes()))
	}
	return out.String(), nil
}
