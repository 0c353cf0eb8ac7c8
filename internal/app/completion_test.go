package app

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/internal/statusapi"
)

// serviceNames serves a list of Services, as a daemon would.
func serviceNames(t *testing.T) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "c") // the name of a test may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(statusapi.VersionHeader, statusapi.Version)
		var page statusapi.ServiceList
		for _, s := range []statusapi.ServiceSummary{
			{Namespace: "default", Name: "web", Address: "10.96.0.1"}, {Namespace: "shop", Name: "cart"}, {Namespace: "shop", Name: "web"},
		} {
			if n := r.URL.Query().Get("namespace"); n == "" || n == s.Namespace {
				page.Items = append(page.Items, s)
			}
		}
		_ = json.NewEncoder(w).Encode(page)
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return filepath.Join(dir, "s")
}

// TestCompletion completes words as a shell does.
func TestCompletion(t *testing.T) {
	socket := serviceNames(t)
	for line, want := range map[string]string{
		"status --socket " + socket + " |":          "default/web\t10.96.0.1 shop/cart shop/web :4",
		"status --socket " + socket + " |sh":        "shop/cart shop/web :4",
		"status --socket " + socket + " |shop/w":    "shop/web :4",
		"explain --socket " + socket + " |default/": "default/web\t10.96.0.1 :4",
		"status --socket /none/s |sh":               ":4",
		"status -o |":                               "wide json yaml name :4",
		"explain -o |":                              "text json yaml :4",
		"version -o |":                              "text json yaml :4",
		"top --sort-by |":                           "new active in out failed refused total name :4",
		"render --proxy-mode |":                     "nftables iptables ipvs userspace ebpf :4",
		"--proxy-mode |":                            "nftables iptables ipvs userspace ebpf :4",
		"bugreport |":                               ":4",
	} {
		before, word, _ := strings.Cut(line, "|")
		out, err := execute(t, append(append([]string{"__complete"}, strings.Fields(before)...), word)...)
		got, _, _ := strings.Cut(out, "Completion ended")
		if got = strings.Join(strings.FieldsFunc(got, func(r rune) bool { return r == '\n' }), " "); err != nil || got != want {
			t.Errorf("%q is completed to %q, error %v; want %q", line, got, err, want)
		}
	}
}
