package main

import (
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	spdxType   types.MediaType = "application/spdx+json"
	intotoType types.MediaType = "application/vnd.in-toto+json"
)

// referrers returns the documents in the form of a registry, each referring to its subject: an SBOM
// to its image, the provenance to the index of each tag.
func (b *images) referrers() ([]v1.Image, error) {
	var out []v1.Image
	add := func(kind types.MediaType, text []byte, about partial.Describable) error {
		subject, err := partial.Descriptor(about)
		if err != nil {
			return err
		}
		base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), kind)
		img, err := mutate.Append(base, mutate.Addendum{Layer: static.NewLayer(text, kind), MediaType: kind})
		if err != nil {
			return err
		}
		// Only the identifying fields: the descriptor of an index would also contain platforms.
		s := v1.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size}
		out = append(out, mutate.Subject(img, s).(v1.Image))
		return nil
	}
	for _, img := range b.all {
		if err := add(spdxType, img.sbom, img); err != nil {
			return nil, err
		}
	}
	provenance, err := b.provenance()
	if err != nil {
		return nil, err
	}
	for _, tag := range b.tags() {
		if err := add(intotoType, provenance, b.index(tag)); err != nil {
			return nil, err
		}
	}
	return out, nil
}
