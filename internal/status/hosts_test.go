package status

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestAllowHosts(t *testing.T) {
	tests := []struct {
		host, local string // local is the address that the connection was made to, empty for a unix socket
		allowed     bool
	}{
		{"localhost", "", true},
		{"LocalHost:8080", "127.0.0.1", true},
		{"127.0.0.1:8080", "127.0.0.1", true},
		{"127.1.2.3", "127.0.0.1", true},
		{"[::1]:8080", "::1", true},
		{"[::1]", "", true},
		{"10.0.0.2:8080", "10.0.0.2", true},
		{"[fd00::2]:8080", "fd00::2", true},
		{"10.0.0.2:8080", "::ffff:10.0.0.2", true},
		{"10.0.0.3:8080", "10.0.0.2", false},
		{"10.0.0.2", "", false},
		{"evil.example:8080", "127.0.0.1", false},
		{"evil.example", "", false},
		{"localhost.evil.example", "127.0.0.1", false},
		{"127.0.0.1.evil.example", "127.0.0.1", false},
		{"2130706433", "127.0.0.1", false},
		{"", "127.0.0.1", false},
	}
	h := AllowHosts(http.NotFoundHandler())
	for _, test := range tests {
		t.Run(test.host+" at "+test.local, func(t *testing.T) {
			var local net.Addr = &net.UnixAddr{Name: "/run/sluice/status.sock", Net: "unix"}
			if test.local != "" {
				local = &net.TCPAddr{IP: net.ParseIP(test.local), Port: 8080}
			}
			r := httptest.NewRequest("GET", "/", nil)
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))
			r.Host = test.host
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if got := w.Code != http.StatusForbidden; got != test.allowed {
				t.Errorf("HTTP %d; want allowed: %v", w.Code, test.allowed)
			}
		})
	}
}
