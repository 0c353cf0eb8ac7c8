package kubectl

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice/internal/status/page"
	"sluice/internal/statusapi"
)

func (f *flags) page() *cobra.Command {
	var port uint16
	cmd := &cobra.Command{
		Use:   "page",
		Short: "Show the page of one node, or of all nodes, in a browser",
		Long: `Serve the daemons' page at a port of 127.0.0.1 until interrupted. All users of
this machine can reach the port, and see what you may see.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "serve at this `PORT` of 127.0.0.1; by default, a free one")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		_, all, err := f.daemons(cmd.Context())
		if err != nil {
			return err
		}
		handler := index(all)
		if f.node != "" {
			var n statusapi.Node // Fail before a link is printed.
			if err := all[0].Get(cmd.Context(), statusapi.NodePath, nil, &n); err != nil {
				return all[0].onNode(err)
			}
			handler = all[0].handler()
		}
		l, err := net.Listen("tcp", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port).String())
		if err != nil {
			return fmt.Errorf("--port %d: %w", port, err)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "http://%s/ (Ctrl-C to end)\n", l.Addr())
		return serve(cmd.Context(), l, localOnly(handler))
	}
	return cmd
}

// serve serves until ctx ends.
func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// localOnly returns a handler that calls next for GET and HEAD requests whose host is a
// loopback address or localhost. This prevents DNS rebinding: a website that resolves
// its own name to 127.0.0.1 could otherwise read responses in the user's browser.
func localOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
		switch {
		case !strings.EqualFold(host, "localhost") && (err != nil || !addr.IsLoopback()):
			http.Error(w, "use 127.0.0.1 or localhost", http.StatusForbidden)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "the page is read-only: use GET", http.StatusMethodNotAllowed)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// handler serves the page of a daemon, and forwards requests of its API. The page is
// this program's own, not the daemon's: all nodes have the same origin, so a script of
// one node could read the responses of the others.
func (d daemon) handler() http.Handler {
	if d.err == nil {
		var h http.Handler
		if h, d.err = d.client.ForwardData(); d.err == nil {
			mux := http.NewServeMux()
			mux.Handle("/"+statusapi.Version+"/", h)
			mux.Handle("/", page.Handler())
			return mux
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, d.onNode(d.err).Error(), http.StatusBadGateway)
	})
}

// index serves a list of the nodes, and the page of each of them.
func index(all []daemon) http.Handler {
	mux := http.NewServeMux()
	for _, d := range all {
		prefix := "/nodes/" + d.node
		mux.Handle(prefix+"/", http.StripPrefix(prefix, d.handler()))
	}
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, r *http.Request) {
		answers, err := ask(r.Context(), all, get[statusapi.Node](statusapi.NodePath, nil))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("Cache-Control", "no-store")
		h.Set("Referrer-Policy", "no-referrer")
		_ = indexPage.Execute(w, answers) // fails if the client disconnected
	})
	return mux
}

// indexPage is the list of nodes. The template escapes what comes from nodes.
var indexPage = template.Must(template.New("index").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>Sluice: nodes</title>
<h1>Nodes</h1>
<table cellpadding="6">
<tr align="left"><th>Node<th>Mode<th>Health<th align="right">Services<th align="right">Pending<th align="right">Refused<th align="right">Problems<th>Version
{{range .}}<tr><td>{{if .Answer}}<a href="nodes/{{.Node}}/">{{.Node}}</a>
{{- with .Answer}}<td>{{.Mode}}<td>{{if .Health.Healthy}}healthy{{else}}NOT HEALTHY: {{.Health.Reason}}{{end}}
{{- with .Counts}}<td align="right">{{.Services}}<td align="right">{{.Pending}}<td align="right">{{.Refused}}<td align="right">{{.Problems}}{{end -}}
<td>{{.Version}}{{end}}{{else}}{{.Node}}<td colspan="7">no answer: {{.Error}}{{end}}
{{end}}</table>
`))
