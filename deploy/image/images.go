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

// image is the image of one tag and architecture, and its contents.
type image struct {
	v1.Image
	tag     string
	program *program
	debian  *debian // nil except for the tag -iptables
	sbom    []byte
}

// platform returns the platform entry of the index.
func (i *image) platform() *v1.Platform {
	p := &v1.Platform{OS: i.program.os, Architecture: i.program.arch}
	if p.Architecture == "arm64" {
		p.Variant = "v8"
	}
	return p
}

// images is everything that was built.
type images struct {
	*release
	all []*image
}

// tags returns the tags: two for Linux, the last for Windows.
func (r *release) tags() []string {
	return []string{r.version, r.version + "-iptables", r.version + "-windows"}
}

// windowsArch is the only architecture that Kubernetes supports on Windows nodes.
const windowsArch = "amd64"

// build builds all images and their SBOMs.
func (r *release) build(ctx context.Context) (*images, error) {
	out := &images{release: r}
	for _, arch := range r.arches {
		b, err := r.buildProgram(ctx, "linux", arch)
		if err != nil {
			return nil, err
		}
		d, err := r.debianPackages(ctx, arch)
		if err != nil {
			return nil, err
		}
		out.all = append(out.all, &image{tag: r.tags()[0], program: b}, &image{tag: r.tags()[1], program: b, debian: d})
	}
	b, err := r.buildProgram(ctx, "windows", windowsArch)
	if err != nil {
		return nil, err
	}
	out.all = append(out.all, &image{tag: r.tags()[2], program: b})
	for _, img := range out.all {
		if err := r.assemble(img); err != nil {
			return nil, fmt.Errorf("%s: %w", img.fileName(), err)
		}
	}
	return out, nil
}

// annotations returns the annotations of index and manifests, which are also the labels of the
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

// trees returns the layers of an image, those that change least first, with a description of each.
func (r *release) trees(img *image) ([]tree, []string, error) {
	if img.program.os == "windows" {
		base, daemon, err := r.windowsTrees(img.program)
		return []tree{base, daemon}, []string{"empty registry hives", "the daemon"}, err
	}
	daemon, err := r.daemonTree(img.program)
	if err != nil || img.debian == nil {
		return []tree{daemon}, []string{"the daemon"}, err
	}
	programs, err := img.debian.tree()
	return []tree{programs, daemon}, []string{"programs of Debian", "the daemon"}, err
}

// assemble builds the image from its layers.
func (r *release) assemble(img *image) error {
	trees, comments, err := r.trees(img)
	if err != nil {
		return err
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

// entrypoint returns the path of the program in the image. Windows resolves it relative to the
// mount point of the host-process container's image.
func (i *image) entrypoint() string {
	if i.program.os == "windows" {
		return "sluice.exe"
	}
	return "/usr/local/bin/sluice"
}

// configure sets how the image is started.
func (r *release) configure(base v1.Image, img *image) (v1.Image, error) {
	config, err := base.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	p := img.platform()
	config.OS, config.Architecture, config.Variant = p.OS, p.Architecture, p.Variant
	config.Created = v1.Time{Time: r.date}
	config.Config = v1.Config{Entrypoint: []string{img.entrypoint()}, Labels: r.annotations(img.tag)}
	if p.OS == "linux" {
		config.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
		config.Config.WorkingDir = "/"
		config.Config.User = "0" // rules and sockets require root; the manifests limit the capabilities
	}
	return mutate.ConfigFile(base, config)
}

// index returns the index of a tag, with an image for each architecture.
func (b *images) index(tag string) v1.ImageIndex {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, img := range b.all {
		if img.tag == tag {
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: img.platform()}})
		}
	}
	return mutate.Annotations(index, maps.Clone(b.annotations(tag))).(v1.ImageIndex)
}
