package deploy

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// workplace is where images are built and unpacked.
var workplace = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "sluice-image-") })

// built are the images of this architecture, by make image's program; the tags are
// those that the manifests name.
var built = sync.OnceValues(func() (string, error) {
	dir, err := workplace()
	if err != nil {
		return "", err
	}
	packages, err := filepath.Abs(root + "/.cache/packages")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "run", ".", "--version=latest", "--commit="+strings.Repeat("0", 40), "--date=2026-01-02T03:04:05Z",
		"--ldflags=-s -w", "--arch="+runtime.GOARCH, "--output="+dir, "--packages="+packages)
	cmd.Dir = root + "/deploy/image"
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the images: %w\n%s", err, out)
	}
	return dir, nil
})

// unpacked has a folder for each image.
var unpacked sync.Map

// rootfs returns a folder with the files of an image like sluice:latest.
func rootfs(t *testing.T, image string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs the images, of packages from the network; left out by -short")
	}
	unpack, _ := unpacked.LoadOrStore(image, sync.OnceValues(func() (string, error) { return unpackImage(image) }))
	dir, err := unpack.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// unpackImage unpacks the layers of an archive for container engines.
func unpackImage(image string) (string, error) {
	dir, err := built()
	if err != nil {
		return "", err
	}
	tag, ok := strings.CutPrefix(image, "sluice:")
	if !ok {
		return "", fmt.Errorf("image %s: nobody builds that", image)
	}
	name := filepath.Join(dir, "sluice-"+tag+"-linux-"+runtime.GOARCH)
	layers, err := layersOf(name + ".tar")
	if err != nil {
		return "", err
	}
	if err := os.Mkdir(name, 0o755); err != nil {
		return "", err
	}
	for _, layer := range layers {
		pipe := exec.Command("sh", "-c", `tar -x -O -f "$1" "$2" | tar -x -z -C "$3"`, "sh", name+".tar", layer, name)
		if out, err := pipe.CombinedOutput(); err != nil {
			return "", fmt.Errorf("unpack %s: %w\n%s", layer, err, out)
		}
	}
	return name, nil
}

// layersOf returns the files with layers in an archive, the first one first.
func layersOf(archive string) ([]string, error) {
	f, err := os.Open(archive)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err != nil {
			return nil, fmt.Errorf("%s: look for manifest.json: %w", archive, err)
		}
		if h.Name != "manifest.json" {
			continue
		}
		var images []struct{ Layers []string }
		text, err := io.ReadAll(r)
		if err := errors.Join(err, json.Unmarshal(text, &images)); err != nil || len(images) != 1 {
			return nil, fmt.Errorf("%s: %d images (error: %w)", archive, len(images), err)
		}
		return images[0].Layers, nil
	}
}

// image returns the binary that the images have.
func image(t *testing.T) string {
	t.Helper()
	return filepath.Join(rootfs(t, "sluice:latest"), "usr/local/bin/sluice")
}

// TestMain removes what was built. The tests also start their own program, to
// become a container's first process.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == enterContainer {
		fmt.Fprintln(os.Stderr, runInContainer(os.Args[2:]))
		os.Exit(1)
	}
	code := m.Run()
	if dir, err := workplace(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// TestGuideNamesWhatThereIs looks for each file that the guide names.
func TestGuideNamesWhatThereIs(t *testing.T) {
	guide := contents(t, root+"/docs/replace-kube-proxy.md")
	named := regexp.MustCompile(`\bdeploy/[\w/.+-]*\w`).FindAllString(string(guide), -1)
	if len(named) == 0 {
		t.Fatal("the guide names nothing under deploy/")
	}
	for _, name := range named {
		if _, err := fs.Stat(os.DirFS(root), path.Clean(name)); err != nil {
			t.Error(err)
		}
	}
}
