package status

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// AllowHosts passes requests on that name this machine: localhost, a loopback
// address, or the address that the connection was made to.
//
// A site can have its own DNS name lead to a loopback address, and the browser
// then lets its scripts read what answers there. Such a request names that site.
// With TLS the site would lack our certificate, so any name will do.
func AllowHosts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil && !namesUs(r) {
			send(w, nil, refuse(http.StatusForbidden, "asked as %.60q: use localhost, or the address that sluice listens on", r.Host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func namesUs(r *http.Request) bool {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if err != nil {
		return strings.EqualFold(host, "localhost")
	}
	return addr.Unmap().IsLoopback() || addr.Unmap() == arrivedAt(r)
}

// arrivedAt returns the address that the connection was made to. It is not
// valid for a unix socket.
func arrivedAt(r *http.Request) netip.Addr {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return local.AddrPort().Addr().Unmap().WithZone("")
}
