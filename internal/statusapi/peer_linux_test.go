package statusapi

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSilentDaemon checks that a daemon which accepts connections and does not answer is
// named within two seconds, with its process.
func TestSilentDaemon(t *testing.T) {
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	var n Node
	began := time.Now()
	err = AtSocket(l.Addr().String()).Get(t.Context(), NodePath, nil, &n)
	if want := fmt.Sprintf("does not answer: process %d is stuck", os.Getpid()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	if took := time.Since(began); took < nodeTimeout || took > nodeTimeout+5*time.Second {
		t.Errorf("it took %v, want %v", took, nodeTimeout)
	}
}
