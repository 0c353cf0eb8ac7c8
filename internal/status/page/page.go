package page

import (
	"embed"
	"net/http"
	"path"
)

//go:embed files
var files embed.FS

// policy allows the browser to load our files and to request our API, and nothing
// else. Trusted types forbid scripts to parse text as HTML.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// mediaTypes has the media types by file extension. Package mime is not used because
// it reads tables of the operating system, which may differ.
var mediaTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// Handler serves the page at / and its files beside it.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Frame-Options", "DENY")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store") // the next version of the daemon may have another page
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "the page is read-only: use GET", http.StatusMethodNotAllowed)
			return
		}
		name := r.URL.Path
		if name == "/" {
			name = "/index.html"
		}
		text, err := files.ReadFile("files" + name)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		h.Set("Content-Type", mediaTypes[path.Ext(name)])
		_, _ = w.Write(text) // fails if the client disconnected
	})
}
