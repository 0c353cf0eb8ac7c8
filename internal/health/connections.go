package health

import (
	"container/list"
	"net"
	"sync"
)

// maxConnections is how many clients a listener holds. Each costs memory, which is
// the last that the kernel takes from this process when there is none left.
const maxConnections = 256

// boundedListener closes the connection that it has had for the longest when there
// would be too many: who holds connections cannot keep out who asks and goes.
type boundedListener struct {
	net.Listener

	mu   sync.Mutex
	open list.List // of *boundedConn, the oldest first
}

// Accept waits for a connection.
func (l *boundedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &boundedConn{Conn: conn, of: l}
	if oldest := l.add(c); oldest != nil {
		_ = oldest.Close()
	}
	return c, nil
}

// add notes a connection, and returns one that has to go for it.
func (l *boundedListener) add(c *boundedConn) (oldest *boundedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.at = l.open.PushBack(c)
	if l.open.Len() > maxConnections {
		oldest = l.open.Front().Value.(*boundedConn)
	}
	return oldest
}

type boundedConn struct {
	net.Conn
	of *boundedListener
	at *list.Element
}

// Close closes the connection; it may be called again.
func (c *boundedConn) Close() error {
	c.of.mu.Lock()
	c.of.open.Remove(c.at) // nothing, if it is not there any more
	c.of.mu.Unlock()
	return c.Conn.Close()
}
