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
	"golang.org/x/sync/errgroup"

	"sluice/internal/status/page"
	"sluice/internal/statusapi"
)

func (f *flags) page() *cobra.Command {
	var port uint16
	cmd := &cobra.Command{
		Use:   "page",
		Short: "Show the page of one node, or of all, in a browser",
		Long: `Serve the daemons' page at a port of this machine's loopback address until it is
interrupted. Who can reach that port sees what you may see.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "serve at this `PORT` of 127.0.0.1; without it, at one that is free")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		_, all, err := f.daemons(cmd.Context())
		if err != nil {
			return err
		}
		handler := index(all)
		if f.node != "" {
			var n statusapi.Node // before anything is promised
			if err := all[0].Get(cmd.Context(), statusapi.NodePath, nil, &n); err != nil {
				return all[0].onNode(err)
			}
			handler = all[0].pass()
		}
		l, err := net.Listen("tcp", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port).String())
		if err != nil {
			return fmt.Errorf("--port %d: %w", port, err)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "http://%s/ (ctrl-C ends it)\n", l.Addr())
		return serve(cmd.Context(), l, onlyUs(handler))
	}
	return cmd
}

// serve answers until ctx ends.
func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	var group errgroup.Group
	group.Go(func() error { return server.Serve(l) })
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := group.Wait(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// onlyUs passes requests on that read, and that name this machine: a site whose
// own name leads here must not have a browser read what answers.
func onlyUs(next http.Handler) http.Handler {
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
			http.Error(w, "this is read-only: use GET", http.StatusMethodNotAllowed)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// pass serves the page of a daemon, with what the daemon answers. The page is our
// own: all nodes have one origin, and a script that one of them sends could read
// what the others answer.
func (d daemon) pass() http.Handler {
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

// index leads to the page of each node.
func index(all []daemon) http.Handler {
	mux := http.NewServeMux()
	for _, d := range all {
		prefix := "/nodes/" + d.node
		mux.Handle(prefix+"/", http.StripPrefix(prefix, d.pass()))
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
		_ = indexPage.Execute(w, answers) // the client has gone
	})
	return mux
}

// indexPage lists nodes. The names are text, whatever they are.
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
