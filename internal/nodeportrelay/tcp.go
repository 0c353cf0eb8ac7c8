package nodeportrelay

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"k8s.io/klog/v2"
)

// acceptPause is the time until the next attempt after a connection could not be
// accepted, for example because the process has no file descriptor left.
const acceptPause = 100 * time.Millisecond

// accept relays the connections of a port until its socket is closed.
func (r *Relay) accept(ctx context.Context, l *listener, socket *net.TCPListener) {
	for {
		select {
		case <-l.closed:
			return
		case r.flows <- struct{}{}:
		}
		client, err := socket.AcceptTCP()
		switch {
		case err == nil:
			r.running.Go(func() {
				defer func() { <-r.flows }()
				r.relay(ctx, l.target.Load(), client)
			})
			continue
		case errors.Is(err, net.ErrClosed):
			<-r.flows
			return
		}
		<-r.flows
		select {
		case <-l.closed:
		case <-time.After(acceptPause):
		}
	}
}

// relay copies between a client and an endpoint until both are done or ctx ends. The
// client's connection is reset if no endpoint can be reached.
func (r *Relay) relay(ctx context.Context, t *target, client *net.TCPConn) {
	defer func() { _ = client.Close() }()
	conn, to, hangUp, err := r.dial(ctx, "tcp6", t)
	if err != nil {
		klog.FromContext(ctx).V(4).Info("No endpoint of a NodePort at [::1] accepts a connection", "servicePort", t.Key, "err", err)
		_ = client.SetLinger(0)
		return
	}
	defer hangUp()
	klog.FromContext(ctx).V(6).Info("Relaying a connection from [::1]", "servicePort", t.Key, "endpoint", to)
	endpoint := conn.(*net.TCPConn)
	defer context.AfterFunc(ctx, func() { _, _ = client.Close(), endpoint.Close() })()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pass(endpoint, client)
	}()
	pass(client, endpoint)
	<-done
}

// pass copies what one side sends, and then its end, or its failure as a reset.
func pass(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil { // within the kernel, by splice
		for _, c := range []*net.TCPConn{to, from} {
			_ = c.SetLinger(0)
			_ = c.Close()
		}
		return
	}
	_ = to.CloseWrite()
}
