package faults

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/internal/conformance"
	"sluice/internal/conformance/churn"
	"sluice/internal/conformance/lab"
	"sluice/test/daemon/testbed"
)

// histories is how many each mode goes through.
var histories = flag.Int("churn", 8, "run this many random `HISTORIES` in each mode, of up to 10 steps each")

// TestChurn runs random histories with the whole daemon and a folder of manifests.
func TestChurn(t *testing.T) {
	program := testbed.Binary(t)
	churn.SetHistories(t, *histories)
	for _, mode := range churn.Modes {
		t.Run(mode, func(t *testing.T) {
			if mode != "ebpf" { // it moves the process, with all children, into its own cgroup
				t.Parallel()
			}
			churn.Run(t, churn.Settings{
				Mode: mode, Program: program, Objects: "a folder of manifests",
				Open: func(*lab.Host) (churn.Source, error) { return &folder{t.TempDir(), map[string]string{}}, nil },
			})
		})
	}
}

// folder is a folder of manifests.
type folder struct {
	dir   string
	there map[string]string // by file
}

// Write writes a file for each object that is new or has changed, and removes the others.
func (f *folder) Write(_ context.Context, w *conformance.World) (*conformance.World, error) {
	want := map[string]string{}
	for _, o := range w.Objects() {
		text, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		want[strings.ToLower(fmt.Sprintf("%T-%s-%s.yaml", o, o.GetNamespace(), o.GetName()))[1:]] = string(text)
	}
	for name := range f.there {
		if _, ok := want[name]; !ok {
			if err := os.Remove(filepath.Join(f.dir, name)); err != nil {
				return nil, err
			}
		}
	}
	for name, text := range want {
		if f.there[name] != text {
			if err := f.put(name, text); err != nil {
				return nil, err
			}
		}
	}
	f.there = want
	return w, nil
}

// put writes a file atomically.
func (f *folder) put(name, text string) error {
	tmp := filepath.Join(f.dir, "."+name)
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(f.dir, name))
}

func (f *folder) Flags() []string { return []string{"--manifests", f.dir} }

func (f *folder) Folder(context.Context) (string, error) { return f.dir, nil }

func (f *folder) Faults() []conformance.Fault { return nil }

func (f *folder) Close() error { return nil }
