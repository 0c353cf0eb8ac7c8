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

// statusTCP has the flags for serving the status API over TCP.
type statusTCP struct{ address, certFile, keyFile string }

// statusListener is the validated form of statusTCP.
type statusListener struct {
	address netip.AddrPort   // the zero value: do not listen
	tls     *tls.Config      // nil: plain HTTP
	readers *access.Reviewer // nil: everybody who can connect to the loopback address may read
}

// listener validates the flags. An address that is not loopback needs TLS, and an
// API server that authorises readers.
func (t statusTCP) listener(c config.Configuration, from objectSource) (statusListener, error) {
	var l statusListener
	var err error
	switch {
	case t.certFile == "" != (t.keyFile == ""):
		return l, errors.New("--status-tls-cert-file and --status-tls-private-key-file: give both or none")
	case t.address != "" && t.address != config.None:
	case t.certFile != "":
		return l, errors.New("--status-tls-cert-file: needs --status-bind-address")
	default:
		return l, nil
	}
	invalid := func(format string, args ...any) (statusListener, error) {
		return statusListener{}, fmt.Errorf("--status-bind-address %q: "+format, append([]any{t.address}, args...)...)
	}
	if l.address, err = netip.ParseAddrPort(t.address); err != nil || l.address.Port() == 0 {
		return invalid("must be an IP address and a port, like 127.0.0.1:10246")
	}
	for name, other := range map[string]netip.AddrPort{"health": c.HealthzBindAddress, "metrics": c.MetricsBindAddress} {
		if overlaps(l.address, other) {
			return invalid("the %s server is at %v: use another port", name, other)
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
		return invalid("other hosts can reach it, so it needs --status-tls-cert-file and --status-tls-private-key-file")
	case from.config == nil:
		return invalid("other hosts can reach it, and with --manifests there is no API server to authorise readers: " +
			"use a loopback address")
	}
	l.readers, err = newReviewer(from.config)
	return l, err
}

// overlaps reports whether two servers cannot listen at both addresses.
func overlaps(a, b netip.AddrPort) bool {
	return a.Port() == b.Port() && (a.Addr() == b.Addr() || a.Addr().IsUnspecified() || b.Addr().IsUnspecified())
}

// newReviewer returns a Reviewer with a client of its own, so that requests of
// readers do not use up the rate limit of the proxy's own client.
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

// guard restricts a handler to the requests that may be answered at the address.
func (l statusListener) guard(h http.Handler) http.Handler {
	if l.readers != nil {
		return status.Authenticate(h, l.readers.Allow)
	}
	return status.AllowHosts(h)
}
