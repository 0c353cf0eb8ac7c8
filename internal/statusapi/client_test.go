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

// TestErrorsSayWhatToDo checks that every failure is reported in one line that says
// what to do about it.
func TestErrorsSayWhatToDo(t *testing.T) {
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
		"another server": {
			serve(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }),
			"the server there is not a sluice daemon",
		},
		"another version": {
			serve(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set(VersionHeader, "v2, v3") }),
			"supports version v2, v3 of the status API, this program version v1",
		},
		"refusal": {serve(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(VersionHeader, "v1")
			http.Error(w, `{"error":"no Service ns/none"}`, http.StatusNotFound)
		}), "no Service ns/none"},
		"invalid JSON": {serve(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(VersionHeader, "v1")
			_, _ = w.Write([]byte("{"))
		}), "decode the response as version v1"},
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

// TestUnreachable checks errors that real sockets return only to users other than
// root, or on Windows.
func TestUnreachable(t *testing.T) {
	c := AtSocket("/x")
	for code, want := range map[syscall.Errno]string{
		syscall.EACCES: "only root may", wsaAccess: "only root may", syscall.ECONNREFUSED: "left over", wsaRefused: "left over",
	} {
		err := c.unreachable(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", code)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("code %d: %v, want %q", code, err, want)
		}
	}
	if got := permissionHint("windows"); strings.Contains(got, "root") || strings.Contains(got, "sudo") {
		t.Errorf("on Windows: %s", got)
	}
}

func TestGetEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := AtSocket("/x").Get(ctx, NodePath, nil, nil); err == nil {
		t.Error("no error")
	}
}
