package status

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"sluice/internal/statusapi"
)

// serve serves a node of a name at a socket until stop is called.
func serve(t *testing.T, path, name string) (log func() string, stop func()) {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	ended := make(chan error, 1)
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(statusapi.VersionHeader, statusapi.Version)
		_, _ = w.Write([]byte(`{"name":"` + name + `"}`))
	})
	go func() { ended <- Socket{Path: path, Handler: handler}.Run(ctx) }()
	return func() string { return logger.GetSink().(ktesting.Underlier).GetBuffer().String() }, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

// waitFor waits until the node of a name answers at a socket.
func waitFor(t *testing.T, path, want string) {
	t.Helper()
	var n statusapi.Node
	var err error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); runtime.Gosched() {
		c := statusapi.AtSocket(path)
		if err = c.Get(t.Context(), statusapi.NodePath, nil, &n); err == nil && n.Name == want {
			c.CloseIdle()
			return
		}
		c.CloseIdle()
	}
	t.Fatalf("%q answers at %s, error %v; want %q", n.Name, path, err, want)
}

func TestSocketIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "status.sock")
	_, stop := serve(t, path, "one")
	waitFor(t, path, "one")
	for name, want := range map[string]os.FileMode{path: os.ModeSocket | 0o600, filepath.Dir(path): os.ModeDir | 0o700} {
		if info, err := os.Stat(name); err != nil || info.Mode() != want {
			t.Errorf("%s is %v, error %v; want %v", name, info.Mode(), err, want)
		}
	}
	stop()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("after Run has returned: %v; want no socket", err)
	}
	if left, _ := filepath.Glob(path + ".new"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestSocketOfKilledDaemonIsReplaced listens where a socket exists that nobody
// listens on.
func TestSocketOfKilledDaemonIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, stop := serve(t, path, "two")
	defer stop()
	waitFor(t, path, "two")
}

// TestFirstOfTwoDaemonsKeepsItsSocket also checks that the second takes the socket
// over when the first stops.
func TestFirstOfTwoDaemonsKeepsItsSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status.sock")
	_, stopOne := serve(t, path, "one")
	waitFor(t, path, "one")
	log, stopTwo := serve(t, path, "two")
	defer stopTwo()
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(log(), "another daemon listens there"); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("the second daemon does not log why it waits: %s", log())
		}
	}
	waitFor(t, path, "one")
	stopOne()
	waitFor(t, path, "two")
}

// TestErrorIsLoggedOnce checks that an error is not logged again at every attempt,
// one per second, perhaps for months.
func TestErrorIsLoggedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status.sock")
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		log, stop := serve(t, path, "one")
		time.Sleep(10 * socketRetry)
		stop()
		if n := strings.Count(log(), "The status API is not served at its socket"); n != 1 {
			t.Errorf("logged %d times, want once:\n%s", n, log())
		}
	})
}
