package health

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"
)

// TestManyConnections opens more connections than a server keeps: the oldest are closed,
// and new requests are served.
func TestManyConnections(t *testing.T) {
	r := run(t, ServerSettings{Address: loopback})
	at := r.bound(netip.AddrPort{}).String()
	const more = 10
	var held []net.Conn
	for range maxConnections + more {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held = append(held, c)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	response, err := client.Get("http://" + at)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("HTTP %d", response.StatusCode)
	}
	ended := func(c net.Conn, within time.Duration) bool {
		if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
			t.Fatal(err)
		}
		_, err := c.Read(make([]byte, 1))
		return errors.Is(err, io.EOF)
	}
	for i, c := range held[:more] {
		if !ended(c, 5*time.Second) {
			t.Errorf("connection %d is held", i)
		}
	}
	if ended(held[len(held)-1], 10*time.Millisecond) {
		t.Error("the newest connection is closed")
	}
}
