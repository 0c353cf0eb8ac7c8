package statusapi

import (
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
)

// Forward returns a handler that passes everything on to the daemon, the page
// too, so that a browser can reach it that cannot reach its socket. The daemon
// hears which host the browser asked for, and refuses what is not this machine.
func (c *Client) Forward() (http.Handler, error) { return c.forward(nil) }

// ForwardData is Forward for daemons that are not trusted: whatever they answer,
// a browser takes it for data.
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
		ErrorLog:       log.New(io.Discard, "", 0), // the browser is told
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadGateway)
			_ = json.NewEncoder(w).Encode(Error{Message: c.unreachable(err).Error()}) // the browser has gone
		},
	}, nil
}
