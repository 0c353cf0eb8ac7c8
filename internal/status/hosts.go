package status

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// AllowHosts returns a handler that calls next for requests whose Host header is
// this machine: localhost, a loopback address, or the address that the connection
// was made to. Other requests get 403.
//
// This prevents DNS rebinding: a website can resolve its own name to a loopback
// address, and the browser then lets the site's scripts read the responses. Such
// requests have the site's name as their host. With TLS any host is allowed, because
// the browser would reject our certificate for the site's name.
func AllowHosts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil && !isThisHost(r) {
			send(w, nil, refuse(http.StatusForbidden, "host %.60q is not allowed: use localhost, or the address that sluice listens on", r.Host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func isThisHost(r *http.Request) bool {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if err != nil {
		return strings.EqualFold(host, "localhost")
	}
	return addr.Unmap().IsLoopback() || addr.Unmap() == localAddr(r)
}

// localAddr returns the address that the connection was made to. It is not valid
// for a unix socket.
func localAddr(r *http.Request) netip.Addr {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return local.AddrPort().Addr().Unmap().WithZone("")
}
