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

// answering serves at a path until stop.
func answering(t *testing.T, path, name string) (log func() string, stop func()) {
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

// answers waits for who answers at a path.
func answers(t *testing.T, path, want string) {
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

func TestOnlyTheOwnerMayAsk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "status.sock")
	_, stop := answering(t, path, "one")
	answers(t, path, "one")
	for name, want := range map[string]os.FileMode{path: os.ModeSocket | 0o600, filepath.Dir(path): os.ModeDir | 0o700} {
		if info, err := os.Stat(name); err != nil || info.Mode() != want {
			t.Errorf("%s is %v, error %v; want %v", name, info.Mode(), err, want)
		}
	}
	stop()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("after the end: %v; want nothing there", err)
	}
	if left, _ := filepath.Glob(path + ".new"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestWhatAKilledDaemonLeftIsReplaced: its socket is there, and nobody answers.
func TestWhatAKilledDaemonLeftIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, stop := answering(t, path, "two")
	defer stop()
	answers(t, path, "two")
}

// TestTheFirstOfTwoDaemonsKeepsItsSocket, and the second has it when that ends.
func TestTheFirstOfTwoDaemonsKeepsItsSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status.sock")
	_, stopOne := answering(t, path, "one")
	answers(t, path, "one")
	log, stopTwo := answering(t, path, "two")
	defer stopTwo()
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(log(), "another daemon answers there"); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("the second says nothing: %s", log())
		}
	}
	answers(t, path, "one")
	stopOne()
	answers(t, path, "two")
}

// TestWhatIsInTheWayIsToldOnce: it is tried every second, and may be so for months.
func TestWhatIsInTheWayIsToldOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status.sock")
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		log, stop := answering(t, path, "one")
		time.Sleep(10 * socketRetry)
		stop()
		if n := strings.Count(log(), "Status cannot be asked for"); n != 1 {
			t.Errorf("told %d times, want once:\n%s", n, log())
		}
	})
}
