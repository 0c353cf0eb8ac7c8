package status

import (
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"sluice/internal/statusapi"
)

// oneConn is a listener that accepts one connection.
type oneConn struct {
	net.Conn
	accepted bool
}

func (l *oneConn) Accept() (net.Conn, error) {
	if l.accepted {
		return nil, errors.New("no more")
	}
	l.accepted = true
	return l.Conn, nil
}

func (l *oneConn) Addr() net.Addr { return l.LocalAddr() }
func (l *oneConn) Close() error   { return nil }

// TestSlowClient checks that the connection of a client that does not read its
// response is closed.
func TestSlowClient(t *testing.T) {
	run(t, "", addServices, func(l *lab) {
		near, far := net.Pipe()
		server := &http.Server{Handler: l.server.Handler()}
		_ = server.Serve(&oneConn{Conn: far})
		if _, err := io.WriteString(near, "GET "+statusapi.ServicesPath+" HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(writeTimeout + time.Second)
		synctest.Wait()
		if n, err := near.Read(make([]byte, 100)); err != io.EOF {
			t.Errorf("%d bytes, error %v; want a closed connection", n, err)
		}
		_ = near.Close()
	})
}
