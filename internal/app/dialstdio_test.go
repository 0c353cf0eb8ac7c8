package app

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"sluice/internal/statusapi"
)

// TestDialStdio sends a request through the command: the whole answer arrives
// although the input has ended by then, and the command ends although the server
// would wait for another request.
func TestDialStdio(t *testing.T) {
	dir, err := os.MkdirTemp("", "dial") // the name of a test may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 1<<20)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(long)))
		_, _ = w.Write([]byte(long))
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })

	cmd := newDialStdioCommand()
	var out, said bytes.Buffer
	cmd.SetIn(strings.NewReader("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	cmd.SetOut(&out)
	cmd.SetErr(&said)
	cmd.SetArgs([]string{"--socket", socket})
	if err := cmd.ExecuteContext(t.Context()); err != nil || said.String() != statusapi.Connected+"\n" {
		t.Errorf("error %v, said %q", err, said.String())
	}
	if !strings.HasPrefix(out.String(), "HTTP/1.1 200 OK\r\n") || !strings.HasSuffix(out.String(), "\r\n\r\n"+long) {
		t.Errorf("%d bytes came, %.60q...", out.Len(), out.String())
	}
}

func TestDialStdioWithoutDaemon(t *testing.T) {
	out, err := execute(t, "dial-stdio", "--socket", "/none/s")
	if want := "no daemon answers at /none/s: is sluice running on this node? (--socket names another socket)"; errorText(err) != want || out != "" {
		t.Errorf("error %v, said %q; want error %q", err, out, want)
	}
	help, _ := execute(t, "--help")
	if strings.Contains(help, statusapi.DialStdio) {
		t.Error("help shows a hidden command")
	}
}
