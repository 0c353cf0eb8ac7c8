package app

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/netip"

	"k8s.io/client-go/rest"

	"sluice/internal/access"
	"sluice/internal/apiclient"
	"sluice/internal/config"
	"sluice/internal/health"
	"sluice/internal/status"
)

// statusTCP is what flags say about where the status API answers beside its socket.
type statusTCP struct{ address, certFile, keyFile string }

// statusListener is the same, checked.
type statusListener struct {
	address netip.AddrPort   // the invalid one: nowhere
	tls     *tls.Config      // nil: plain HTTP
	readers *access.Reviewer // nil: whoever reaches the loopback address
}

// listener checks where to answer and to whom. Nothing but a loopback address
// goes without TLS and an API server that says who may read.
func (t statusTCP) listener(c config.Configuration, from objectSource) (statusListener, error) {
	var l statusListener
	var err error
	switch {
	case t.certFile == "" != (t.keyFile == ""):
		return l, errors.New("--status-tls-cert-file and --status-tls-private-key-file: one needs the other")
	case t.address != "" && t.address != config.None:
	case t.certFile != "":
		return l, errors.New("--status-tls-cert-file: needs --status-bind-address, where the certificate is to be shown")
	default:
		return l, nil
	}
	wrong := func(format string, args ...any) (statusListener, error) {
		return statusListener{}, fmt.Errorf("--status-bind-address %q: "+format, append([]any{t.address}, args...)...)
	}
	if l.address, err = netip.ParseAddrPort(t.address); err != nil || l.address.Port() == 0 {
		return wrong("want an IP address and a port, like 127.0.0.1:10246")
	}
	for what, other := range map[string]netip.AddrPort{"health": c.HealthzBindAddress, "metrics": c.MetricsBindAddress} {
		if overlaps(l.address, other) {
			return wrong("the %s server is at %v: give it another port", what, other)
		}
	}
	if t.certFile != "" {
		cert, err := status.OpenCertificate(t.certFile, t.keyFile)
		if err != nil {
			return l, fmt.Errorf("--status-tls-cert-file %q and --status-tls-private-key-file %q: %w", t.certFile, t.keyFile, err)
		}
		l.tls = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: cert.Get}
	}
	switch {
	case l.address.Addr().IsLoopback():
		return l, nil
	case l.tls == nil:
		return wrong("other hosts can reach it, so it needs --status-tls-cert-file and --status-tls-private-key-file")
	case from.config == nil:
		return wrong("other hosts can reach it, and with --manifests there is no API server that says who may read: " +
			"use a loopback address")
	}
	l.readers, err = newReviewer(from.config)
	return l, err
}

// overlaps reports whether two servers would be in each other's way.
func overlaps(a, b netip.AddrPort) bool {
	return a.Port() == b.Port() && (a.Addr() == b.Addr() || a.Addr().IsUnspecified() || b.Addr().IsUnspecified())
}

// newReviewer returns who asks the API server about readers, at a rate of its
// own: what others send must not hold up what the proxy itself asks for.
func newReviewer(c *rest.Config) (*access.Reviewer, error) {
	c = rest.CopyConfig(c)
	c.QPS = -1
	client, err := apiclient.New(c)
	if err != nil {
		return nil, err
	}
	return access.New(client), nil
}

func (l statusListener) serve(h http.Handler) *health.Server {
	return health.NewServer(health.ServerSettings{Name: "status", Handler: l.guard(h), Address: l.address, TLS: l.tls})
}

// guard lets only those requests through that may be answered here.
func (l statusListener) guard(h http.Handler) http.Handler {
	if l.readers != nil {
		return status.Authenticate(h, l.readers.Allow)
	}
	return status.AllowHosts(h)
}
