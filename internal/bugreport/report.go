package bugreport

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"sluice/internal/cli"
	"sluice/internal/statusapi"
)

const (
	// maxTroubled bounds how many Services are asked for one by one.
	maxTroubled = 100
	// maxLog is how much of the end of a log is taken.
	maxLog = 1 << 20
	// maxMetrics bounds what a metrics server is listened to.
	maxMetrics = 64 << 20
)

// Settings are where a report is gathered from.
type Settings struct {
	Client  *statusapi.Client
	Socket  string // the daemon's, by which its process is found
	Metrics string // the metrics server, like http://127.0.0.1:10249
	Log     string // a file; empty: none is wanted
	Version any    // of this program, to be written as JSON
	Host    fs.FS  // the root of the file system

	// Rules lists what a mode has in the kernel, without any program.
	Rules func(ctx context.Context, mode string) ([]byte, error)

	// Run runs a program of the host and returns what it prints.
	Run func(ctx context.Context, program string, args ...string) ([]byte, error)
}

// Contents is what a report consists of.
type Contents struct {
	Files []File
	Notes []string // what could not be had, and why
}

type File struct {
	Name, What string
	text       []byte
}

// errNothing says that a report would be about nothing.
var errNothing = errors.New("neither the daemon nor its rules could be asked")

// Gather asks everybody. It fails only if nobody answers who knows of the proxy.
func Gather(ctx context.Context, s Settings) (*Contents, error) {
	r := &Contents{}
	node := r.daemon(ctx, s)
	r.metrics(ctx, s)
	r.rules(ctx, s, node.Mode)
	if len(r.Files) == 0 {
		return nil, fmt.Errorf("%w: %s", errNothing, r.Notes[0])
	}
	r.host(s)
	text, err := json.MarshalIndent(s.Version, "", "  ")
	r.add("version.json", "what this program was built from", text, err)
	if s.Log != "" {
		text, err := tail(s.Log)
		r.add("log.txt", "the end of "+s.Log, text, err)
	}
	return r, nil
}

// add takes a file, or notes why there is none. What it is and why there is none
// may be in the words of whoever was asked, and are shown on root's terminal.
func (c *Contents) add(name, what string, text []byte, err error) {
	what = cli.Clean(what)
	if err != nil {
		c.Notes = append(c.Notes, cli.Clean(string(redact([]byte(fmt.Sprintf("%s (%s): %v", name, what, err))))))
		return
	}
	c.Files = append(c.Files, File{name, what, redact(text)})
}

// daemon asks the daemon for all it tells of itself.
func (c *Contents) daemon(ctx context.Context, s Settings) (node statusapi.Node) {
	err := s.Client.Get(ctx, statusapi.NodePath, nil, &node)
	text, _ := json.MarshalIndent(node, "", "  ") // it came from JSON
	c.add("node.json", "how the daemon, its node and its syncs are", text, err)
	if err != nil {
		return node // the others would say the same
	}
	for _, l := range []struct{ file, what, path string }{
		{"problems.json", "what is wrong with objects", statusapi.ProblemsPath},
		{"changes.json", "what changed last", statusapi.ChangesPath},
		{"services.json", "all Services, one line each", statusapi.ServicesPath},
		{"traffic.json", "what was counted for each Service port", statusapi.TrafficPath},
	} {
		items, err := list(ctx, s.Client, l.path)
		c.add(l.file, l.what, items, err)
		if l.path == statusapi.ServicesPath && err == nil {
			text, err := troubled(ctx, s.Client, items)
			c.add("troubled.json", "Services that need attention, in full", text, err)
		}
	}
	return node
}

// list returns all items of a list, page by page.
func list(ctx context.Context, c *statusapi.Client, path string) ([]byte, error) {
	all := []json.RawMessage{}
	err := statusapi.EachPage(ctx, nil, func(ctx context.Context, query url.Values) (int, string, error) {
		var page struct {
			Items    []json.RawMessage `json:"items"`
			Continue string            `json:"continue"`
		}
		err := c.Get(ctx, path, query, &page)
		all = append(all, page.Items...)
		return len(page.Items), page.Continue, err
	})
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(all, "", "  ")
}

// troubled returns in full the first Services that need attention.
func troubled(ctx context.Context, c *statusapi.Client, list []byte) ([]byte, error) {
	var services []statusapi.ServiceSummary
	if err := json.Unmarshal(list, &services); err != nil {
		return nil, err
	}
	all := []statusapi.Service{}
	for _, s := range services {
		if !s.Troubled() || len(all) == maxTroubled {
			continue
		}
		var one statusapi.Service
		err := c.Get(ctx, statusapi.ServicePath(s.Namespace, s.Name), nil, &one)
		if gone, ok := errors.AsType[*statusapi.ResponseError](err); ok && gone.Code == http.StatusNotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return json.MarshalIndent(all, "", "  ")
}

// metrics asks the metrics server, which also knows the configuration in force.
func (c *Contents) metrics(ctx context.Context, s Settings) {
	for _, f := range []struct{ file, what, path string }{
		{"metrics.txt", "all metrics", "/metrics"},
		{"configuration.json", "the configuration in force", "/configz"},
	} {
		text, err := fetch(ctx, s.Metrics+f.path)
		c.add(f.file, f.what, text, err)
	}
}

// fetch asks one address. Whatever answers there sends nobody elsewhere: this
// process may reach what it may not.
func fetch(ctx context.Context, address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", address, response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, maxMetrics))
}

func tail(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(max(0, info.Size()-maxLog), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, maxLog))
}

// Write writes the report as a compressed archive, in a folder of a name.
func (c *Contents) Write(w io.Writer, folder string, now time.Time) error {
	compressed := gzip.NewWriter(w)
	archive := tar.NewWriter(compressed)
	var index strings.Builder
	c.WriteIndex(&index)
	for _, f := range append([]File{{Name: "README.txt", text: []byte(index.String())}}, c.Files...) {
		head := &tar.Header{Name: folder + "/" + f.Name, Mode: 0o600, Size: int64(len(f.text)), ModTime: now}
		if err := archive.WriteHeader(head); err != nil {
			return err
		}
		if _, err := archive.Write(f.text); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}

// WriteIndex says what is in the report and what is not.
func (c *Contents) WriteIndex(w io.Writer) {
	for _, f := range c.Files {
		_, _ = fmt.Fprintf(w, "  %-20s %s, %d bytes\n", f.Name, f.What, len(f.text))
	}
	for i, n := range c.Notes {
		if i == 0 {
			_, _ = fmt.Fprintln(w, "Could not be had:")
		}
		_, _ = fmt.Fprintf(w, "  %s\n", n)
	}
}
