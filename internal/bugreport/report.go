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
	maxTroubled = 100      // Services that are reported in full
	maxLog      = 1 << 20  // bytes of the end of the log
	maxMetrics  = 64 << 20 // bytes of a response of the metrics server
)

// Settings are the sources of a report.
type Settings struct {
	Client  *statusapi.Client
	Socket  string        // the daemon's unix socket, to find its process
	Metrics string        // URL of the metrics server, for example http://127.0.0.1:10249
	Log     string        // path of the daemon's log; empty if it is not wanted
	Timeout time.Duration // how long reading may take; what is not read by then is noted
	Version any           // of this program, encoded as JSON
	Host    fs.FS         // the root of the file system

	// Rules lists what a mode has in the kernel, without running a program.
	Rules func(ctx context.Context, mode string) ([]byte, error)

	// Run runs a program of the host and returns its output.
	Run func(ctx context.Context, program string, args ...string) ([]byte, error)
}

// Contents are the contents of a report, without secrets.
type Contents struct {
	Files []File
	Notes []string // what could not be read, and why
}

// File is a file of a report.
type File struct {
	Name, What string // What describes the content
	text       []byte
}

// errNothing means that a report would have nothing about the proxy.
var errNothing = errors.New("neither the daemon nor its rules can be read")

// Gather reads all sources, for at most the time that the settings allow. It returns an
// error only if neither the daemon, its metrics nor its rules can be read.
func Gather(ctx context.Context, s Settings) (*Contents, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	r := &Contents{}
	node, answers := r.node(ctx, s)
	r.gather(ctx, []part{
		{"everything else of the daemon", func(c *Contents) {
			if answers { // Otherwise other requests would have the same error.
				c.daemon(ctx, s)
			}
		}},
		{"metrics and configuration", func(c *Contents) { c.metrics(ctx, s) }},
		{"rules", func(c *Contents) { c.rules(ctx, s, node.Mode) }},
	})
	if len(r.Files) == 0 {
		return nil, fmt.Errorf("%w: %s", errNothing, r.Notes[0])
	}
	r.host(s)
	text, err := json.MarshalIndent(s.Version, "", "  ")
	r.add("version.json", "the version of this program", text, err)
	if s.Log != "" {
		text, err := tail(s.Log)
		r.add("log.txt", "the end of "+s.Log, text, err)
	}
	return r, nil
}

// part is a part of a report that is read concurrently with others.
type part struct {
	what string
	read func(*Contents)
}

// partGrace is how long a part may go on after ctx has ended, to note what it lacks.
const partGrace = 500 * time.Millisecond

// gather reads parts, and adds them in their order. It does not wait for those that go on
// after ctx has ended: a call of the kernel cannot be interrupted.
func (c *Contents) gather(ctx context.Context, parts []part) {
	results := make([]chan *Contents, len(parts))
	for i, p := range parts {
		results[i] = make(chan *Contents, 1)
		go func() {
			var one Contents
			p.read(&one)
			results[i] <- &one
		}()
	}
	late := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { time.Sleep(partGrace); close(late) })
	defer stop()
	for i, p := range parts {
		select {
		case one := <-results[i]:
			c.Files, c.Notes = append(c.Files, one.Files...), append(c.Notes, one.Notes...)
		case <-late:
			c.Notes = append(c.Notes, p.what+": not read in time")
		}
	}
}

// add adds a file, or a note if err is not nil. The description and the error may
// contain text from other processes and are shown on root's terminal, so they are
// cleaned.
func (c *Contents) add(name, what string, text []byte, err error) {
	what = cli.Clean(what)
	if err != nil {
		c.Notes = append(c.Notes, cli.Clean(string(redact([]byte(fmt.Sprintf("%s (%s): %v", name, what, err))))))
		return
	}
	c.Files = append(c.Files, File{name, what, redact(text)})
}

// node adds what the status API says about the node, and reports whether the daemon
// answers.
func (c *Contents) node(ctx context.Context, s Settings) (node statusapi.Node, answers bool) {
	err := s.Client.Get(ctx, statusapi.NodePath, nil, &node)
	text, _ := json.MarshalIndent(node, "", "  ") // cannot fail: it was decoded from JSON
	c.add("node.json", "the status of the daemon, its doubts, its node and its syncs", text, err)
	return node, err == nil
}

// daemon adds everything else in the daemon's status API.
func (c *Contents) daemon(ctx context.Context, s Settings) {
	for _, l := range []struct{ file, what, path string }{
		{"problems.json", "problems of objects", statusapi.ProblemsPath},
		{"changes.json", "the last changes", statusapi.ChangesPath},
		{"services.json", "all Services, in short", statusapi.ServicesPath},
		{"traffic.json", "traffic counters of service ports", statusapi.TrafficPath},
	} {
		items, err := list(ctx, s.Client, l.path)
		c.add(l.file, l.what, items, err)
		if l.path == statusapi.ServicesPath && err == nil {
			text, err := troubled(ctx, s.Client, items)
			c.add("troubled.json", "Services that need attention, in full", text, err)
		}
	}
}

// list returns all items of a list as JSON.
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

// troubled returns the first Services of a list that need attention, in full.
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

// metrics adds what the metrics server has: the metrics, and the configuration in force.
func (c *Contents) metrics(ctx context.Context, s Settings) {
	for _, f := range []struct{ file, what, path string }{
		{"metrics.txt", "all metrics", "/metrics"},
		{"configuration.json", "the configuration in force", "/configz"},
	} {
		text, err := fetch(ctx, s.Metrics+f.path)
		c.add(f.file, f.what, text, err)
	}
}

// fetch returns what is at a URL. It does not follow redirects: another process may have
// taken the port, and must not make this one, which runs as root, request other
// addresses.
func fetch(ctx context.Context, address string) ([]byte, error) {
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
		return nil, fmt.Errorf("get %s: HTTP status %s", address, response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, maxMetrics))
}

// tail returns the last maxLog bytes of a file.
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

// Write writes the report as a compressed tar archive with one folder.
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

// WriteIndex writes what is in the report, and what could not be read.
func (c *Contents) WriteIndex(w io.Writer) {
	for _, f := range c.Files {
		_, _ = fmt.Fprintf(w, "  %-20s %s, %d bytes\n", f.Name, f.What, len(f.text))
	}
	for i, n := range c.Notes {
		if i == 0 {
			_, _ = fmt.Fprintln(w, "Could not be read:")
		}
		_, _ = fmt.Fprintf(w, "  %s\n", n)
	}
}
