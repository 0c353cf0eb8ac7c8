package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// fileName returns the base name of the files about an image.
func (i *image) fileName() string {
	return fmt.Sprintf("sluice-%s-%s-%s", i.tag, i.program.os, i.program.arch)
}

// write writes everything to the output directory.
func (b *images) write() error {
	if err := os.MkdirAll(b.output, 0o755); err != nil {
		return err
	}
	if err := b.writeLayout(filepath.Join(b.output, "image")); err != nil {
		return err
	}
	files := []string{"image/index.json"}
	for _, img := range b.all {
		archive, sbom := img.fileName()+".tar", img.fileName()+".spdx.json"
		ref, err := name.NewTag("sluice:" + img.tag)
		if err != nil {
			return err
		}
		if err := tarball.WriteToFile(filepath.Join(b.output, archive), ref, img); err != nil {
			return fmt.Errorf("write %s: %w", archive, err)
		}
		if err := b.writeFile(sbom, img.sbom); err != nil {
			return err
		}
		files = append(files, archive, sbom)
	}
	provenance, err := b.provenance()
	if err != nil {
		return err
	}
	statement := "sluice-" + b.version + ".provenance.json"
	notes, err := b.notes()
	if err != nil {
		return err
	}
	err = errors.Join(b.writeFile(statement, provenance), b.writeFile("release-notes.md", notes))
	if err != nil {
		return err
	}
	return b.writeSums(append(files, statement, "release-notes.md"))
}

// writeLayout writes the OCI image layout with all tags.
func (b *images) writeLayout(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	for _, tag := range b.tags() {
		if err := to.AppendIndex(b.index(tag), layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag})); err != nil {
			return fmt.Errorf("write the image of tag %s: %w", tag, err)
		}
	}
	referrers, err := b.referrers()
	if err != nil {
		return err
	}
	for _, r := range referrers {
		if err := to.AppendImage(r); err != nil {
			return err
		}
	}
	return nil
}

func (b *images) writeFile(name string, text []byte) error {
	return os.WriteFile(filepath.Join(b.output, name), text, 0o644)
}

// writeSums writes the input of "sha256sum --check".
func (b *images) writeSums(files []string) error {
	slices.Sort(files)
	var all strings.Builder
	for _, name := range files {
		text, err := fs.ReadFile(os.DirFS(b.output), name)
		if err != nil {
			return err
		}
		fmt.Fprintf(&all, "%x  %s\n", sha256.Sum256(text), name)
	}
	return b.writeFile("SHA256SUMS", []byte(all.String()))
}

// digests returns the digest of each tag.
func (b *images) digests() (map[string]v1.Hash, error) {
	out := map[string]v1.Hash{}
	for _, tag := range b.tags() {
		digest, err := b.index(tag).Digest()
		if err != nil {
			return nil, err
		}
		out[tag] = digest
	}
	return out, nil
}
