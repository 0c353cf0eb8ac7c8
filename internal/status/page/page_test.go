package page

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"
)

// get sends a request to a handler.
func get(h http.Handler, method, url string) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, url, nil))
	return w.Result()
}

func TestHandler(t *testing.T) {
	tests := []struct {
		method, path string
		code         int
		mediaType    string
	}{
		{"GET", "/", 200, "text/html; charset=utf-8"},
		{"HEAD", "/", 200, "text/html; charset=utf-8"},
		{"GET", "/page.js", 200, "text/javascript; charset=utf-8"},
		{"GET", "/style.css", 200, "text/css; charset=utf-8"},
		{"GET", "/icon.svg", 200, "image/svg+xml"},
		{"GET", "/nothing", 404, "text/plain; charset=utf-8"},
		{"GET", "/../page.go", 404, "text/plain; charset=utf-8"},
		{"GET", "//", 404, "text/plain; charset=utf-8"},
		{"POST", "/", 405, "text/plain; charset=utf-8"},
		{"DELETE", "/page.js", 405, "text/plain; charset=utf-8"},
	}
	for _, test := range tests {
		t.Run(test.method+" "+test.path, func(t *testing.T) {
			resp := get(Handler(), test.method, "http://localhost"+test.path)
			if resp.StatusCode != test.code || resp.Header.Get("Content-Type") != test.mediaType {
				t.Errorf("%s, %s; want %d, %s", resp.Status, resp.Header.Get("Content-Type"), test.code, test.mediaType)
			}
			for name, want := range map[string]string{
				"Content-Security-Policy": policy, "X-Frame-Options": "DENY",
				"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
			} {
				if got := resp.Header.Get(name); got != want && test.code == 200 {
					t.Errorf("%s is %q; want %q", name, got, want)
				}
			}
		})
	}
}

// TestFiles searches the files for what the content security policy forbids, and for
// links to other origins.
func TestFiles(t *testing.T) {
	forbidden := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\bon[a-z]+="|style="|<style|javascript:`)
	outside := regexp.MustCompile(`(https?:)?//[a-z0-9-]+\.[a-z]`)
	err := fs.WalkDir(files, "files", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if mediaTypes[path.Ext(name)] == "" {
			t.Errorf("%s: its extension has no media type", name)
		}
		text, err := files.ReadFile(name)
		for i, line := range strings.Split(string(text), "\n") {
			if found := forbidden.FindString(line); found != "" {
				t.Errorf("%s:%d: %s", name, i+1, found)
			}
			if found := outside.FindString(line); found != "" && !strings.Contains(line, "http://www.w3.org/2000/svg") {
				t.Errorf("%s:%d: another origin, %s", name, i+1, found)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
