package figures

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Read returns the report in a file, or an empty one if there is no file.
func Read(path string) (*Report, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &Report{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read figures: %w", err)
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("read figures of %s: %w", path, err)
	}
	return &r, nil
}

// Write writes the report to a file atomically.
func (r *Report) Write(path string) error {
	part := path + ".part"
	text, err := json.MarshalIndent(r, "", " ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = os.WriteFile(part, append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write figures: %w", err)
	}
	return os.Rename(part, path)
}

// AddResult adds a result and replaces an older one of the same peer and size.
func (r *Report) AddResult(x Result) {
	r.Results = slices.DeleteFunc(r.Results, func(y Result) bool { return y.Peer == x.Peer && y.Size == x.Size })
	r.Results = append(r.Results, x)
}

// AddFloor adds a floor and replaces an older one of the same size.
func (r *Report) AddFloor(x Floor) {
	r.Floors = slices.DeleteFunc(r.Floors, func(y Floor) bool { return y.Size == x.Size })
	r.Floors = append(r.Floors, x)
	slices.SortFunc(r.Floors, func(a, b Floor) int { return a.Size.Compare(b.Size) })
}

// SetMachine records the machine of the latest run. Versions of programs that it did not use stay.
func (r *Report) SetMachine(m Machine) {
	for name, version := range r.Machine.Versions {
		if _, ok := m.Versions[name]; !ok {
			m.Versions[name] = version
		}
	}
	r.Machine = m
}

// Result returns the result of a peer at a size, or nil.
func (r *Report) Result(peer string, size Size) *Result {
	return find(r.Results, func(x *Result) bool { return x.Peer == peer && x.Size == size })
}

// Floor returns the floor at a size, or nil.
func (r *Report) Floor(size Size) *Floor {
	return find(r.Floors, func(f *Floor) bool { return f.Size == size })
}

// Sizes returns all sizes with results, smallest first.
func (r *Report) Sizes() []Size {
	var out []Size
	for _, x := range r.Results {
		out = append(out, x.Size)
	}
	slices.SortFunc(out, Size.Compare)
	return slices.Compact(out)
}

// Peers returns all peers with results, in the order of their first results.
func (r *Report) Peers() []string {
	var out []string
	for _, x := range r.Results {
		if !slices.Contains(out, x.Peer) {
			out = append(out, x.Peer)
		}
	}
	return out
}
