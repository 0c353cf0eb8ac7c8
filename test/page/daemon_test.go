package page

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"sluice/internal/conformance/lab"
	"sluice/internal/statusapi"
	"sluice/test/programs"
)

// binaries builds the daemon and the demo once, as make does, and returns their folder.
var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sluice-page-")
	if err != nil {
		return "", err
	}
	err = programs.Daemon.Put(context.Background(), filepath.Join(dir, "sluice"))
	return dir, errors.Join(err, programs.Demo.Put(context.Background(), filepath.Join(dir, "demo")))
})

// TestMain removes the binaries.
func TestMain(m *testing.M) {
	code := m.Run()
	if !testing.Short() { // which builds none
		if dir, err := binaries(); err == nil {
			_ = os.RemoveAll(dir)
		}
	}
	os.Exit(code)
}

// node is a network namespace with the real daemon on a folder.
type node struct {
	t           *testing.T
	lab         *lab.Lab
	dir, socket string
	origin      string // where a browser finds the socket
	daemon      *exec.Cmd
}

func newNode(t *testing.T) *node {
	t.Helper()
	lab.Require(t)
	l, err := lab.New(lab.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	short, err := os.MkdirTemp("", "s") // the kernel wants a socket's path to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	n := &node{t: t, lab: l, dir: t.TempDir(), socket: filepath.Join(short, "s")}
	n.origin = forward(t, n.socket)
	return n
}

// write puts a manifest into the folder at once.
func (n *node) write(name, text string) {
	n.t.Helper()
	tmp := filepath.Join(n.dir, "."+name)
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(n.dir, name)); err != nil {
		n.t.Fatal(err)
	}
}

// start runs the daemon until stop, or the test's end.
func (n *node) start() {
	n.t.Helper()
	dir, err := binaries()
	if err != nil {
		n.t.Fatal(err)
	}
	n.daemon = exec.Command(filepath.Join(dir, "sluice"), "--manifests", n.dir, "--hostname-override", "node-1", "--cluster-cidr", "10.244.0.0/16", "--status-socket", n.socket)
	if err := n.lab.Node().Start(n.daemon); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(n.stop)
}

// stop kills the daemon, as if it had crashed.
func (n *node) stop() {
	if n.daemon.ProcessState == nil {
		_ = n.daemon.Process.Kill()
		_ = n.daemon.Wait()
	}
}

// forward serves what a socket answers to browsers, and returns where.
func forward(t *testing.T, socket string) string {
	t.Helper()
	h, err := statusapi.AtSocket(socket).Forward()
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// manifest returns a Service with endpoints on this node.
func manifest(name, clusterIP string, endpoints ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec:\n  clusterIP: %s\n  ports: [{name: http, port: 80}]\n---\n", name, clusterIP)
	fmt.Fprintf(&b, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s-1, labels: {kubernetes.io/service-name: %s}}\n", name, name)
	fmt.Fprintf(&b, "addressType: IPv4\nports: [{name: http, port: 8080}]\nendpoints:\n")
	for _, e := range endpoints {
		fmt.Fprintf(&b, "- {addresses: [%s], nodeName: node-1}\n", e)
	}
	return b.String() + "---\n"
}

// TestDaemon looks at the real daemon: a change of the folder shows soon,
// a packet is explained, a hostile value stays text, its end is told and its return noticed.
func TestDaemon(t *testing.T) {
	n := newNode(t)
	n.write("web.yaml", manifest("web", "10.96.0.10", "10.244.0.11"))
	hostile := `<img src=x onerror="window.hit=1">`
	n.write("bad.yaml", strings.ReplaceAll(manifest("bad", "10.96.0.20", "10.244.0.13"), "nodeName: node-1",
		"nodeName: node-1, hints: {forZones: [{name: '"+hostile+"'}]}"))
	n.start()
	b := openView(t, n.origin, "")
	b.await(`document.querySelectorAll(".row-link").length === 2`)
	b.do(chromedp.Navigate(n.origin + "/#/services/default/bad"))
	b.shows("for " + hostile)
	if eval[bool](b, `window.hit !== undefined || !!document.querySelector("main img")`) {
		t.Error("text was run")
	}
	b.do(chromedp.Navigate(n.origin + "/#/services/default/web"))
	b.await(`document.querySelector("[data-key='box 10.244.0.11:8080'] .flow-value")?.textContent === "100 %"`)

	n.write("web.yaml", manifest("web", "10.96.0.10", "10.244.0.11", "10.244.0.12"))
	if took := b.await(`document.querySelector("[data-key='box 10.244.0.12:8080'] .flow-value")?.textContent === "50 %"`); took > soon {
		t.Errorf("a new endpoint shows after %v; want %v", took, soon)
	}
	b.do(chromedp.Navigate(n.origin+"/#/explain"), chromedp.Focus(chromedp.CSS(`input[name="to"]`)), chromedp.KeyEvent("10.96.0.10:80"+kb.Enter))
	b.shows("The kernel agrees")
	b.shows("It goes to one of 2 endpoints.")
	b.do(chromedp.Navigate(n.origin + "/#/explain?to=nonsense"))
	b.shows(`"nonsense" is not ADDR:PORT`)
	b.do(chromedp.Navigate(n.origin + "/#/changes"))
	b.shows("default/web:http")
	b.do(chromedp.Navigate(n.origin + "/#/services/default/none"))
	b.shows("no Service default/none is served here")
	b.do(chromedp.Navigate(n.origin + "/#/"))
	b.shows("2 Services")

	n.stop()
	if took := b.shows("Stale since "); took > soon {
		t.Errorf("it takes %v to say that the daemon is gone; want %v", took, soon)
	}
	n.start()
	b.await(`document.getElementById("stale").hidden`)
}

// TestDaemonWithManyServices wants 30,000 Services of the real daemon to be as
// easy to look at as two.
func TestDaemonWithManyServices(t *testing.T) {
	n := newNode(t)
	var all strings.Builder
	for i := range 30_000 {
		all.WriteString(manifest(fmt.Sprintf("service-%05d", i), fmt.Sprintf("10.%d.%d.%d", 97+i>>16, i>>8&255, i&255), "10.244.0.11"))
	}
	n.write("all.yaml", all.String())
	n.start()
	b := openView(t, n.origin, "")
	t.Logf("shown after %v", b.await(`document.body.innerText.includes("30,000 Services") && document.body.innerText.includes("All in force")`))
	b.do(chromedp.Focus(chromedp.CSS(`input[name="filter"]`)), chromedp.KeyEvent("service-29999"))
	took := b.shows("1 Service match")
	t.Logf("filtered after %v", took)
	if took > soon {
		t.Errorf("the filter takes %v", took)
	}
	for _, order := range []string{"-state", "-used", "-since", "-name"} {
		b.do(chromedp.Navigate(n.origin + "/#/?sort=" + order))
		t.Logf("sorted by %s after %v", order, b.await(fmt.Sprintf(`performance.getEntriesByType("resource").some(e => e.name.includes("sort=%s") && e.responseEnd > 0) && document.querySelector("th[aria-sort=descending]")`, order)))
	}
	if c := b.noted(&b.console); len(c) > 0 {
		t.Errorf("the console has %q", c)
	}
}
