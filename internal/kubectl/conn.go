package kubectl

import (
	"cmp"
	"context"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"

	"sluice/internal/statusapi"
)

// connect starts sluice dial-stdio by an executor, and returns its streams as a
// connection once it has connected with the daemon; otherwise what it said
// instead. Closing the connection ends the process, by the end of its input.
func connect(ctx context.Context, e remotecommand.Executor) (_ net.Conn, said string, err error) {
	// The connection outlives who dials. What its streams complain of when it is
	// closed is no news.
	life, end := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), logr.Discard()))
	near, far := net.Pipe()
	stderr := &greeting{came: make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		defer end()
		err := e.StreamWithContext(life, remotecommand.StreamOptions{Stdin: far, Stdout: far, Stderr: stderr})
		_ = far.Close()
		ended <- err
	}()
	select {
	case <-stderr.came:
		return near, "", nil
	case err = <-ended:
		err = cmp.Or(err, io.ErrUnexpectedEOF)
	case <-ctx.Done():
		err = ctx.Err()
	}
	end()
	_ = near.Close()
	return nil, stderr.text(), err
}

// maxSaid bounds how much of what a process says is kept.
const maxSaid = 4096

// greeting waits for the line that says that the process has connected, and
// keeps what it says instead.
type greeting struct {
	came chan struct{}

	mu   sync.Mutex
	said strings.Builder
}

// Write takes what the process says.
func (g *greeting) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.connected()
	g.said.Write(p[:min(len(p), max(0, maxSaid-g.said.Len()))])
	if !before && g.connected() {
		close(g.came)
	}
	return len(p), nil
}

func (g *greeting) connected() bool {
	return strings.HasPrefix(g.said.String(), statusapi.Connected+"\n")
}

func (g *greeting) text() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.TrimSpace(g.said.String())
}
