package main

import (
	"maps"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// TestDist reads what was written back: sums, the layout, and the archives for
// container engines.
func TestDist(t *testing.T) {
	b := *built(t)
	r := *b.release
	b.release, r.output = &r, t.TempDir()
	if err := b.write(); err != nil {
		t.Fatal(err)
	}
	check := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = r.output
	if out, err := check.CombinedOutput(); err != nil || strings.Count(string(out), ": OK\n") != 2*len(b.all)+3 {
		t.Errorf("%v\n%s", err, out)
	}
	index, err := layout.ImageIndexFromPath(filepath.Join(r.output, "image"))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	tags := map[string]v1.Hash{}
	for _, d := range manifest.Manifests {
		if tag := d.Annotations["org.opencontainers.image.ref.name"]; tag != "" {
			tags[tag] = d.Digest
		}
	}
	digests, err := b.digests()
	if err != nil {
		t.Fatal(err)
	}
	if len(tags) != len(b.tags()) || !maps.Equal(tags, digests) {
		t.Errorf("the layout has %v, want %v", tags, digests)
	}
	for _, img := range b.all {
		ref, err := name.NewTag("sluice:" + img.tag)
		if err != nil {
			t.Fatal(err)
		}
		loaded, err := tarball.ImageFromPath(filepath.Join(r.output, img.fileName()+".tar"), &ref)
		if err != nil {
			t.Fatal(err)
		}
		got, gotErr := loaded.ConfigName()
		want, wantErr := img.ConfigName()
		if gotErr != nil || wantErr != nil || got != want {
			t.Errorf("%s.tar has image %s, want %s (errors: %v, %v)", img.fileName(), got, want, gotErr, wantErr)
		}
	}
}

// TestPush pushes to a registry and asks it what it has about each image.
func TestPush(t *testing.T) {
	b := built(t)
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true)))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/project/sluice"
	if err := b.push(t.Context(), repository); err != nil {
		t.Fatal(err)
	}
	repo, err := name.NewRepository(repository)
	if err != nil {
		t.Fatal(err)
	}
	for _, tag := range b.tags() {
		index, err := remote.Index(repo.Tag(tag))
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Index(index); err != nil {
			t.Error(err)
		}
		digest, err := index.Digest()
		if err != nil {
			t.Fatal(err)
		}
		checkReferrer(t, repo.Digest(digest.String()), string(intotoType))
	}
	for _, img := range b.all {
		digest, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		checkReferrer(t, repo.Digest(digest.String()), string(spdxType))
	}
	if err := b.push(t.Context(), repository); err != nil {
		t.Errorf("the same once more: %v", err)
	}
	other := *b
	r := *b.release
	other.release, r.commit = &r, strings.Repeat("1", 40)
	if err := other.push(t.Context(), repository); err == nil || !strings.Contains(err.Error(), "the tag is taken by sha256:") {
		t.Errorf("another image by the same tag: %v", err)
	}
}

// checkReferrer wants one document about an image, of a type.
func checkReferrer(t *testing.T, about name.Digest, kind string) {
	t.Helper()
	index, err := remote.Referrers(about)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 || manifest.Manifests[0].ArtifactType != kind {
		t.Errorf("about %s there is %+v, want one %s", about, manifest.Manifests, kind)
	}
}

// TestRefusals wants no release without a name, a commit and a time.
func TestRefusals(t *testing.T) {
	good := map[string]string{"--version": "v1.2.3", "--commit": strings.Repeat("0", 40), "--date": "2026-01-02T03:04:05Z", "--arch": "arm64"}
	for flag, bad := range map[string]string{"--version": "v1/2", "--commit": "HEAD", "--date": "yesterday", "--arch": "arm64,"} {
		var args []string
		for name, value := range good {
			if name == flag {
				value = bad
			}
			args = append(args, name, value)
		}
		if err := run(t.Context(), args); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s %s: %v", flag, bad, err)
		}
	}
}
