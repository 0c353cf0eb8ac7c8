package main

import (
	"context"
	"fmt"
	"maps"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// image is the image of one tag and architecture, and what is in it.
type image struct {
	v1.Image
	tag    string
	binary *binary
	debian *debian // of the second tag only
	sbom   []byte
}

// platform is what the index says of it.
func (i *image) platform() *v1.Platform {
	p := &v1.Platform{OS: "linux", Architecture: i.binary.arch}
	if p.Architecture == "arm64" {
		p.Variant = "v8"
	}
	return p
}

// images is all that was built.
type images struct {
	*release
	all []*image
}

// tags returns the names of both images.
func (r *release) tags() []string { return []string{r.version, r.version + "-iptables"} }

// build builds all images and their SBOMs.
func (r *release) build(ctx context.Context) (*images, error) {
	out := &images{release: r}
	for _, arch := range r.arches {
		b, err := r.buildBinary(ctx, arch)
		if err != nil {
			return nil, err
		}
		d, err := r.debianPackages(ctx, arch)
		if err != nil {
			return nil, err
		}
		for i, tag := range r.tags() {
			img := &image{tag: tag, binary: b}
			if i > 0 {
				img.debian = d
			}
			if err := r.assemble(img); err != nil {
				return nil, fmt.Errorf("%s for %s: %w", tag, arch, err)
			}
			out.all = append(out.all, img)
		}
	}
	return out, nil
}

// annotations are the same on the index, on the manifests and, as labels, in the
// configuration.
func (r *release) annotations(tag string) map[string]string {
	const key = "org.opencontainers.image."
	all := map[string]string{
		key + "title":       "sluice",
		key + "description": "A Kubernetes service proxy, in place of kube-proxy",
		key + "licenses":    "Apache-2.0",
		key + "version":     tag,
		key + "revision":    r.commit,
		key + "created":     r.date.Format("2006-01-02T15:04:05Z"),
	}
	if r.source != "" {
		all[key+"source"] = r.source
	}
	return all
}

// assemble makes the image of its layers: Debian's first, which change least.
func (r *release) assemble(img *image) error {
	daemon, err := r.daemonTree(img.binary)
	if err != nil {
		return err
	}
	trees, comments := []tree{daemon}, []string{"the daemon"}
	if img.debian != nil {
		programs, err := img.debian.tree()
		if err != nil {
			return err
		}
		trees, comments = append([]tree{programs}, trees...), append([]string{"programs of Debian"}, comments...)
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for i, t := range trees {
		layer, err := t.layer()
		if err != nil {
			return err
		}
		history := v1.History{Created: v1.Time{Time: r.date}, CreatedBy: "make image", Comment: comments[i]}
		if base, err = mutate.Append(base, mutate.Addendum{Layer: layer, History: history, MediaType: types.OCILayer}); err != nil {
			return err
		}
	}
	if base, err = r.configure(base, img); err != nil {
		return err
	}
	img.Image = mutate.Annotations(base, r.annotations(img.tag)).(v1.Image)
	img.sbom, err = r.sbom(img)
	return err
}

// configure says how the image is started.
func (r *release) configure(base v1.Image, img *image) (v1.Image, error) {
	config, err := base.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	p := img.platform()
	config.OS, config.Architecture, config.Variant = p.OS, p.Architecture, p.Variant
	config.Created = v1.Time{Time: r.date}
	config.Config = v1.Config{
		Entrypoint: []string{"/usr/local/bin/sluice"},
		Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		WorkingDir: "/",
		User:       "0", // rules and sockets are root's; capabilities are bounded by the manifests
		Labels:     r.annotations(img.tag),
	}
	return mutate.ConfigFile(base, config)
}

// index has the images of a tag, by architecture.
func (b *images) index(tag string) v1.ImageIndex {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, img := range b.all {
		if img.tag == tag {
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: img.platform()}})
		}
	}
	return mutate.Annotations(index, maps.Clone(b.annotations(tag))).(v1.ImageIndex)
}
