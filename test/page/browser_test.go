package page

import (
	"context"
	"fmt"
	"iter"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

const (
	patience = 20 * time.Second // longer than anything here takes on a busy machine
	soon     = 8 * time.Second  // a round of the page and an answer that does not come (page.js: 4.5 s), on such a machine
)

// quiet are the flags that keep Chromium from talking to anybody by itself. It
// runs as root in tests, where its sandbox does not work, and loads nothing but
// our page.
var quiet = []chromedp.ExecAllocatorOption{
	chromedp.ExecPath("chromium"),
	chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck, chromedp.NoSandbox, chromedp.Headless, chromedp.DisableGPU,
	chromedp.Flag("disable-dev-shm-usage", true),
	chromedp.Flag("disable-background-networking", true),
	chromedp.Flag("disable-component-update", true),
	chromedp.Flag("disable-default-apps", true),
	chromedp.Flag("disable-domain-reliability", true),
	chromedp.Flag("disable-extensions", true),
	chromedp.Flag("disable-sync", true),
	chromedp.Flag("disable-features", "OptimizationHints,MediaRouter,Translate,AutofillServerCommunication,CertificateTransparencyComponentUpdater"),
	chromedp.Flag("metrics-recording-only", true),
	chromedp.Flag("no-pings", true),
	chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"),
	chromedp.Flag("proxy-server", "direct://"),
	chromedp.Flag("force-color-profile", "srgb"),
	chromedp.Flag("hide-scrollbars", true),
}

// tab is a page in a browser, with all that it asked for and complained about.
type tab struct {
	t      *testing.T
	ctx    context.Context
	origin string

	mu       sync.Mutex
	requests []string
	console  []string
}

// newTab starts a browser that shows nothing yet.
func newTab(t *testing.T, origin string) *tab {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a browser; left out by -short")
	}
	allocator, stop := chromedp.NewExecAllocator(t.Context(), quiet...)
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(allocator)
	t.Cleanup(closeTab)
	b := &tab{t: t, ctx: ctx, origin: origin}
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1280, 900)); err != nil { // the browser lives as long as this context
		t.Fatalf("start chromium (make deps installs it): %v", err)
	}
	go collect(b, &b.console, chromedp.Console(ctx), func(m chromedp.ConsoleMessage) string {
		return fmt.Sprintf("%s: %s (%s:%d)", m.Type, m.Text, m.URL, m.Line+1)
	})
	go collect(b, &b.requests, chromedp.Events(ctx, network.RequestWillBeSent), func(e network.EventRequestWillBeSent) string { return e.Request.URL })
	return b
}

// collect notes what the browser tells until it ends.
func collect[E any](b *tab, to *[]string, events iter.Seq2[E, error], text func(E) string) {
	for e, err := range events {
		if err != nil {
			return
		}
		b.mu.Lock()
		*to = append(*to, text(e))
		b.mu.Unlock()
	}
}

// openView shows a view of the page.
func openView(t *testing.T, origin, view string) *tab {
	t.Helper()
	b := newTab(t, origin)
	b.do(chromedp.Navigate(origin + "/" + view))
	return b
}

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// await waits until a JavaScript expression is true and returns how long that
// took. What is not true in time fails with what the page shows.
func (b *tab) await(expression string) time.Duration {
	b.t.Helper()
	return b.awaitFor(patience, expression)
}

func (b *tab) awaitFor(limit time.Duration, expression string) time.Duration {
	b.t.Helper()
	began := time.Now()
	for tick := time.NewTicker(20 * time.Millisecond); !eval[bool](b, "!!("+expression+")"); <-tick.C {
		if time.Since(began) > limit {
			b.t.Fatalf("%s does not come true at %s\nconsole: %q\nthe page shows:\n%s", expression, eval[string](b, `location.href`), b.noted(&b.console), eval[string](b, `document.body.innerText`))
		}
	}
	return time.Since(began)
}

// shows waits until the page shows a text.
func (b *tab) shows(text string) time.Duration {
	b.t.Helper()
	return b.await(fmt.Sprintf("document.body.innerText.includes(%q)", text))
}

// eval returns the value of a JavaScript expression.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// noted returns what was collected so far.
func (b *tab) noted(list *[]string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(*list)
}

// overlaps counts requests that began before another had its answer, or was given up.
const overlaps = `performance.getEntriesByType("resource").filter(e => e.name.includes("/v1/") && e.responseStatus > 0)
	.filter((e, i, all) => i > 0 && e.startTime < all[i-1].responseEnd).length`

// checkQuiet wants an empty console, and no request beyond the origin or beside
// another.
func (b *tab) checkQuiet() {
	b.t.Helper()
	if c := b.noted(&b.console); len(c) > 0 {
		b.t.Errorf("the console has %q", c)
	}
	requests := b.noted(&b.requests)
	for _, request := range requests {
		if u, err := url.Parse(request); err != nil || u.Scheme+"://"+u.Host != b.origin {
			b.t.Errorf("a request beyond the origin: %s", request)
		}
	}
	if len(requests) == 0 {
		b.t.Error("no request was seen, not even for the page")
	}
	if n := eval[int](b, overlaps); n > 0 {
		b.t.Errorf("%d requests overlap others", n)
	}
}
