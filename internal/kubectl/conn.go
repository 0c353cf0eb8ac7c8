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

// connect runs sluice dial-stdio with an executor, and returns its streams as a
// connection once the process has connected to the daemon. If it does not, connect
// returns what the process wrote to its standard error. Closing the connection ends
// the process, because its standard input ends.
func connect(ctx context.Context, e remotecommand.Executor) (_ net.Conn, output string, err error) {
	// The connection outlives ctx. The executor logs errors of its streams when the
	// connection is closed; they are discarded.
	streamCtx, end := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), logr.Discard()))
	near, far := net.Pipe()
	stderr := &stderrReader{connected: make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		defer end()
		err := e.StreamWithContext(streamCtx, remotecommand.StreamOptions{Stdin: far, Stdout: far, Stderr: stderr})
		_ = far.Close()
		ended <- err
	}()
	select {
	case <-stderr.connected:
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

// maxStderr bounds how much of a process's standard error is kept.
const maxStderr = 4096

// stderrReader receives the standard error of sluice dial-stdio. It keeps the
// beginning, and closes connected when that is the line statusapi.Connected.
type stderrReader struct {
	connected chan struct{}

	mu      sync.Mutex
	written strings.Builder
}

func (r *stderrReader) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.isConnected()
	r.written.Write(p[:min(len(p), max(0, maxStderr-r.written.Len()))])
	if !before && r.isConnected() {
		close(r.connected)
	}
	return len(p), nil
}

func (r *stderrReader) isConnected() bool {
	return strings.HasPrefix(r.written.String(), statusapi.Connected+"\n")
}

func (r *stderrReader) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.TrimSpace(r.written.String())
}
