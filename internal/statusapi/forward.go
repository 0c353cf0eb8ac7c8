package statusapi

import (
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
)

// Forward returns a handler that forwards every request to the daemon, including
// requests for its page, so that a browser can use a daemon at a unix socket. The
// Host header is forwarded unchanged: the daemon refuses requests for a host other
// than this machine.
func (c *Client) Forward() (http.Handler, error) { return c.forward(nil) }

// ForwardData is like Forward, for daemons that are not trusted: it replaces the
// response headers so that a browser treats every response as JSON and never runs
// any of it as a script.
func (c *Client) ForwardData() (http.Handler, error) {
	return c.forward(func(r *http.Response) error {
		r.Header = http.Header{
			VersionHeader: r.Header[VersionHeader], "Content-Type": {"application/json"}, "X-Content-Type-Options": {"nosniff"},
			"Cache-Control": {"no-store"}, "Content-Security-Policy": {"default-src 'none'; frame-ancestors 'none'; sandbox"},
		}
		return nil
	})
}

func (c *Client) forward(modify func(*http.Response) error) (http.Handler, error) {
	base, err := url.Parse(c.base)
	if err != nil {
		return nil, err
	}
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(base)
			r.Out.Host = r.In.Host
		},
		Transport:      c.http.Transport,
		ModifyResponse: modify,
		ErrorLog:       log.New(io.Discard, "", 0), // ErrorHandler reports errors to the browser
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadGateway)
			_ = json.NewEncoder(w).Encode(Error{Message: c.unreachable(err).Error()}) // fails if the browser disconnected
		},
	}, nil
}
