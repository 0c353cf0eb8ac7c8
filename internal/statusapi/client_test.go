package statusapi

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestWhatToDo: whoever cannot be asked, one line says what to do.
func TestWhatToDo(t *testing.T) {
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	serve := func(h http.HandlerFunc) *Client {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return At(s.Client(), s.URL, "node-1")
	}
	stale := filepath.Join(dir, "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	for name, tt := range map[string]struct {
		client *Client
		says   string
	}{
		"no daemon":     {AtSocket(filepath.Join(dir, "none")), "is sluice running on this node?"},
		"killed daemon": {AtSocket(stale), "has stopped or was killed"},
		"no daemon's": {
			serve(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }),
			"what answers there is no sluice daemon",
		},
		"another version": {
			serve(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set(VersionHeader, "v2, v3") }),
			"speaks version v2, v3 of the status API, this program v1",
		},
		"refusal": {serve(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(VersionHeader, "v1")
			http.Error(w, `{"error":"no Service ns/none"}`, http.StatusNotFound)
		}), "no Service ns/none"},
		"nonsense": {serve(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(VersionHeader, "v1")
			_, _ = w.Write([]byte("{"))
		}), "the answer is not what version v1 has"},
	} {
		t.Run(name, func(t *testing.T) {
			var n Node
			err := tt.client.Get(t.Context(), NodePath, nil, &n)
			if err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v; want one line with %q", err, tt.says)
			}
		})
	}
}

// TestUnreachable needs another user, as root may do everything, and Windows.
func TestUnreachable(t *testing.T) {
	c := AtSocket("/x")
	for code, want := range map[syscall.Errno]string{
		syscall.EACCES: "only root may", wsaAccess: "only root may", syscall.ECONNREFUSED: "it was there", wsaRefused: "it was there",
	} {
		err := c.unreachable(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", code)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("code %d: %v, want %q", code, err, want)
		}
	}
	if got := whoMay("windows"); strings.Contains(got, "root") || strings.Contains(got, "sudo") {
		t.Errorf("on Windows: %s", got)
	}
}

func TestAQuestionEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := AtSocket("/x").Get(ctx, NodePath, nil, nil); err == nil {
		t.Error("no error")
	}
}
