package testbed

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"sluice/internal/proxy"
)

// HTTP returns a client on the node of the daemon's servers.
func (b *Testbed) HTTP(timeout time.Duration) *http.Client {
	dial := func(ctx context.Context, _, addr string) (net.Conn, error) {
		return b.Lab.Node().Dial(ctx, proxy.TCP, netip.Addr{}, netip.MustParseAddrPort(addr))
	}
	return &http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
}

// Get asks one of the daemon's servers.
func (b *Testbed) Get(url string) (code int, body string, err error) {
	resp, err := b.HTTP(5 * time.Second).Get(url)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// Health returns the answer of the daemon's health server; 0 means none.
func (b *Testbed) Health() (code int, body string) {
	code, body, err := b.Get("http://127.0.0.1:10256/healthz")
	if err != nil {
		return 0, err.Error()
	}
	return code, body
}
