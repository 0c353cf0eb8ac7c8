package deploy

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// plugin is what Krew reads of a manifest.
type plugin struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string     `json:"version"`
		ShortDescription string     `json:"shortDescription"`
		Platforms        []platform `json:"platforms"`
	} `json:"spec"`
}

type platform struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	URI    string `json:"uri"`
	SHA256 string `json:"sha256"`
	Bin    string `json:"bin"`
}

// TestKrew builds kubectl sluice for this system as it is for all. The manifest
// must name each archive and its sum, and the archive have the program, which
// knows its version.
func TestKrew(t *testing.T) {
	dist, own := krew(t, "022"), runtime.GOOS+"-"+runtime.GOARCH
	var p plugin
	if err := yaml.Unmarshal(contents(t, dist+"/sluice.yaml"), &p); err != nil {
		t.Fatal(err)
	}
	if p.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || p.Kind != "Plugin" || p.Metadata.Name != "sluice" || p.Spec.Version != "v1.2.3" || len(p.Spec.ShortDescription) > 50 {
		t.Errorf("%+v is no manifest that Krew takes", p)
	}
	script := string(contents(t, root+"/deploy/krew/build.sh"))
	if len(p.Spec.Platforms) != 6 {
		t.Errorf("%d platforms", len(p.Spec.Platforms))
	}
	for _, f := range p.Spec.Platforms {
		system, arch := f.Selector.MatchLabels["os"], f.Selector.MatchLabels["arch"]
		name := system + "-" + arch
		if f.URI != "https://example.org/r/v1.2.3/kubectl-sluice-"+name+".tar.gz" || !strings.Contains(script, " "+system+"/"+arch) && !strings.Contains(script, "-"+system+"/"+arch) {
			t.Errorf("%s: nobody builds %s", name, f.URI)
		}
		if (system == "windows") != (path.Ext(f.Bin) == ".exe") {
			t.Errorf("%s: the program is %s", name, f.Bin)
		}
		want := "SHA256-" + name // of another run of the script
		if name == own {
			sum := sha256.Sum256(contents(t, dist+"/"+path.Base(f.URI)))
			want = hex.EncodeToString(sum[:])
			checkArchive(t, dist+"/"+path.Base(f.URI), f.Bin)
		}
		if f.SHA256 != want {
			t.Errorf("%s: sum %s, want %s", name, f.SHA256, want)
		}
	}
}

// krew builds for this system, with a umask and an environment, and returns the folder.
func krew(t *testing.T, umask string, env ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("compiles everything as for a release; left out by -short")
	}
	dist := t.TempDir()
	build := exec.Command("sh", "-c", `umask "$1"; exec "$2" "$3"`, "sh", umask, root+"/deploy/krew/build.sh", dist)
	build.Env = append(os.Environ(), "VERSION=v1.2.3", "RELEASES=https://example.org/r", "PLATFORMS="+runtime.GOOS+"/"+runtime.GOARCH)
	build.Env = append(build.Env, env...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dist
}

// TestKrewIsTheSame wants the same archive, and so the same sum in the manifest, of
// whoever builds it.
func TestKrewIsTheSame(t *testing.T) {
	mine, others := krew(t, "022"), krew(t, "077", "GOAMD64=v3", "GOARM64=v8.1", "GOFLAGS=-tags=theirs", "GOEXPERIMENT=nogreenteagc")
	if string(contents(t, mine+"/sluice.yaml")) != string(contents(t, others+"/sluice.yaml")) {
		t.Error("another builder's archive is another")
	}
}

// checkArchive wants the program in an archive, and the license beside it.
func checkArchive(t *testing.T, archive, bin string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(h.Name)), text, h.FileInfo().Mode()); err != nil {
			t.Fatal(err)
		}
	}
	if len(contents(t, dir+"/LICENSE")) == 0 {
		t.Error("the license is empty")
	}
	info, err := buildinfo.ReadFile(filepath.Join(dir, bin))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range info.Settings {
		if strings.HasPrefix(s.Key, "vcs") {
			t.Errorf("the program says %s=%s, which is the folder's that it was built in", s.Key, s.Value)
		}
	}
	out, err := exec.Command(filepath.Join(dir, bin), "--version").CombinedOutput()
	if err != nil || !regexp.MustCompile(`\bv1\.2\.3\n`).Match(out) {
		t.Errorf("--version says %s, error %v", out, err)
	}
}
