//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"
)

// folder is the demo's temporary folder: the manifests that the daemon serves,
// those that come next, and the daemon's log.
type folder struct {
	dir       string
	originals map[string][]byte // the manifests as the examples have them, by name
}

// edition says how manifests differ from the examples.
type edition struct {
	without []netip.Addr // endpoints that are taken away
	with    []newcomer   // endpoints that are added to every slice
}

// newcomer is an endpoint that the examples do not have.
type newcomer struct {
	addr netip.Addr
	node string
}

// newFolder copies the manifests of a folder.
func newFolder(examples string) (_ *folder, err error) {
	names, err := filepath.Glob(filepath.Join(examples, "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("list manifests: %w", err)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no manifests in folder %q", examples)
	}
	dir, err := os.MkdirTemp("", "sluice-demo-")
	if err != nil {
		return nil, fmt.Errorf("make a temporary folder: %w", err)
	}
	f := &folder{dir: dir, originals: map[string][]byte{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.remove())
		}
	}()
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		f.originals[filepath.Base(name)] = text
	}
	for _, sub := range []string{f.live(), f.next()} {
		if err := os.Mkdir(sub, 0o755); err != nil {
			return nil, fmt.Errorf("make a temporary folder: %w", err)
		}
	}
	if err := f.prepare(edition{}); err != nil {
		return nil, err
	}
	return f, f.publish()
}

// live is the folder that the daemon watches.
func (f *folder) live() string { return filepath.Join(f.dir, "manifests") }

// next is the folder where manifests are prepared.
func (f *folder) next() string { return filepath.Join(f.dir, "next") }

// log is the file that the daemon writes to.
func (f *folder) log() string { return filepath.Join(f.dir, "sluice.log") }

func (f *folder) remove() error {
	if err := os.RemoveAll(f.dir); err != nil {
		return fmt.Errorf("remove temporary folder: %w", err)
	}
	return nil
}

// prepare writes all manifests of an edition where the daemon does not look.
func (f *folder) prepare(e edition) error {
	for name, text := range f.originals {
		text, err := e.edit(text)
		if err != nil {
			return fmt.Errorf("edit manifest %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(f.next(), name), text, 0o644); err != nil {
			return fmt.Errorf("write manifest: %w", err)
		}
	}
	return nil
}

// publish moves the prepared manifests that differ into their places, each in
// one step, so that the daemon never sees half a file.
func (f *folder) publish() error {
	for name := range f.originals {
		from, to := filepath.Join(f.next(), name), filepath.Join(f.live(), name)
		text, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("read manifest: %w", err)
		}
		served, err := os.ReadFile(to)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read manifest: %w", err)
		}
		if err == nil && bytes.Equal(text, served) {
			continue
		}
		if err := os.Rename(from, to); err != nil {
			return fmt.Errorf("publish manifest: %w", err)
		}
	}
	return nil
}

// edit changes the EndpointSlices in a manifest and leaves all else as it is.
func (e edition) edit(text []byte) ([]byte, error) {
	if len(e.without) == 0 && len(e.with) == 0 {
		return text, nil
	}
	documents := bytes.Split(text, []byte("\n---\n"))
	for i, doc := range documents {
		var slice discoveryv1.EndpointSlice
		if err := yaml.Unmarshal(doc, &slice.TypeMeta); err != nil {
			return nil, err
		}
		if slice.Kind != "EndpointSlice" {
			continue
		}
		if err := yaml.Unmarshal(doc, &slice); err != nil {
			return nil, err
		}
		var err error
		slice.Endpoints = e.endpoints(slice.Endpoints)
		if documents[i], err = yaml.Marshal(slice); err != nil {
			return nil, err
		}
	}
	return bytes.Join(documents, []byte("\n---\n")), nil
}

func (e edition) endpoints(all []discoveryv1.Endpoint) []discoveryv1.Endpoint {
	var out []discoveryv1.Endpoint
	for _, ep := range all {
		if !e.drops(ep) {
			out = append(out, ep)
		}
	}
	for _, n := range e.with {
		out = append(out, discoveryv1.Endpoint{Addresses: []string{n.addr.String()}, NodeName: &n.node})
	}
	return out
}

func (e edition) drops(ep discoveryv1.Endpoint) bool {
	for _, gone := range e.without {
		for _, a := range ep.Addresses {
			if a == gone.String() {
				return true
			}
		}
	}
	return false
}
