package statusapi

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestForward checks that a browser's request is forwarded unchanged, and that the
// browser gets the error of [Client.Get] if no daemon answers.
func TestForward(t *testing.T) {
	dir, err := os.MkdirTemp("", "s") // the kernel limits a socket's path to 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	daemon := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Host+" "+r.RequestURI)
	})}
	go func() { _ = daemon.Serve(l) }()
	h, err := AtSocket(socket).Forward()
	if err != nil {
		t.Fatal(err)
	}
	get := func() (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://evil.example:81/v1/node?a=b", nil))
		return w.Code, w.Body.String()
	}
	if code, text := get(); code != http.StatusOK || text != "evil.example:81 /v1/node?a=b" {
		t.Errorf("HTTP %d, %s", code, text)
	}
	if err := daemon.Close(); err != nil {
		t.Fatal(err)
	}
	if code, text := get(); code != http.StatusBadGateway || !strings.Contains(text, `{"error":"no daemon answers at `+socket) {
		t.Errorf("without a daemon: HTTP %d, %s", code, text)
	}
}
