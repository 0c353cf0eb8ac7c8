package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
)

// statement is an in-toto statement, version 1, with a SLSA provenance, version 1.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     struct {
		BuildDefinition buildDefinition `json:"buildDefinition"`
		RunDetails      runDetails      `json:"runDetails"`
	} `json:"predicate"`
}

// resource identifies something by its digest.
type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

type buildDefinition struct {
	BuildType            string         `json:"buildType"`
	ExternalParameters   map[string]any `json:"externalParameters"`
	InternalParameters   map[string]any `json:"internalParameters"`
	ResolvedDependencies []resource     `json:"resolvedDependencies"`
}

// runDetails has neither times nor an ID of the run, so that a rebuild produces the same statement.
type runDetails struct {
	Builder struct {
		ID string `json:"id"`
	} `json:"builder"`
	Byproducts []resource `json:"byproducts"`
}

// provenance returns the statement of what all images were built from. It is not signed; that is up
// to whoever publishes the images.
func (b *images) provenance() ([]byte, error) {
	s := &statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	for _, tag := range b.tags() {
		digest, err := b.index(tag).Digest()
		if err != nil {
			return nil, err
		}
		s.Subject = append(s.Subject, resource{Name: "sluice:" + tag, Digest: map[string]string{"sha256": digest.Hex}})
	}
	environments := map[string]any{}
	for _, img := range b.all {
		digest, err := img.Digest()
		if err != nil {
			return nil, err
		}
		name := img.fileName()
		s.Subject = append(s.Subject, resource{Name: name, Digest: map[string]string{"sha256": digest.Hex}})
		s.Predicate.RunDetails.Byproducts = append(s.Predicate.RunDetails.Byproducts, digested(name+".spdx.json", img.sbom))
		environments[img.program.os+"/"+img.program.arch] = buildEnvironment(img.program.os, img.program.arch)
	}
	dependencies, err := b.dependencies()
	if err != nil {
		return nil, err
	}
	s.Predicate.RunDetails.Builder.ID = "urn:sluice:make-image"
	s.Predicate.BuildDefinition = buildDefinition{
		BuildType:            "urn:sluice:make-image:v1",
		ExternalParameters:   map[string]any{"version": b.version, "source": b.source, "architectures": b.arches},
		InternalParameters:   map[string]any{"ldflags": b.ldflags, "environment": environments},
		ResolvedDependencies: dependencies,
	}
	return encode(s)
}

// dependencies returns the inputs of the images: the commit, Go, the modules by their go.sum, and
// the Debian packages.
func (b *images) dependencies() ([]resource, error) {
	sums, err := os.ReadFile(filepath.Join(b.root, "go.sum"))
	if err != nil {
		return nil, err
	}
	out := []resource{
		{URI: "git+" + cmp.Or(b.source, "urn:sluice") + "@" + b.commit, Digest: map[string]string{"gitCommit": b.commit}},
		{URI: "pkg:generic/go@" + b.all[0].program.info.GoVersion[len("go"):]},
		digested("go.sum", sums),
	}
	for _, img := range b.all {
		if img.debian == nil {
			continue
		}
		for _, p := range img.debian.packages {
			r := resource{URI: img.debian.purl(&p), Digest: map[string]string{"sha256": p.sha256}}
			if !slices.ContainsFunc(out, func(o resource) bool { return o.URI == r.URI }) { // packages of architecture "all" occur for each
				out = append(out, r)
			}
		}
	}
	return out, nil
}

func digested(name string, text []byte) resource {
	sum := sha256.Sum256(text)
	return resource{Name: name, Digest: map[string]string{"sha256": hex.EncodeToString(sum[:])}}
}
