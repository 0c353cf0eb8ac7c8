package page

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"sluice/internal/statusapi"
)

// TestViews opens every view, and wants no complaint and no stranger asked.
func TestViews(t *testing.T) {
	d := newDaemon(t)
	d.services = []statusapi.Service{web("10.244.0.11:8080", "10.244.0.12:8080")}
	d.problems = []statusapi.Problem{{Object: "Service default/old", Field: "spec.ports[0]", Reason: "has no number"}}
	d.changes = []statusapi.Change{{Number: 7, Time: time.Now(), What: "Changed", ServicePort: "default/web:http", Seconds: 0.0004}}
	d.explanation = statusapi.Explanation{
		Packet:  statusapi.ExplainedPacket{Protocol: "TCP", From: "10.244.0.5", To: "10.96.0.10:80", Origin: "our pod", Why: "10.244.0.5 is in the cluster CIDR"},
		Service: &statusapi.ExplainedPort{Namespace: "default", Name: "web", Port: "http"}, Verdict: "forward", Reason: statusapi.Forwarded,
		Message: "goes to one of 2 endpoints", Candidates: []statusapi.Candidate{{Address: "10.244.0.11:8080", Share: 1}},
		NotUsed: []statusapi.Endpoint{{Address: "10.244.0.99:8080", Reason: "not ready"}},
		Kernel:  statusapi.KernelCheck{State: statusapi.KernelAgrees, Objects: 3},
	}
	b := openView(t, d.URL, "")
	b.shows("All in force, but 1 problem")
	b.shows("default/web")
	b.shows("has no number")
	for view, text := range map[string]string{
		"#/services/default/web": "How a packet flows", "#/problems": "spec.ports[0]", "#/changes": "400 µs",
		"#/explain?to=default/web": "The kernel agrees", "#/": "1 Service",
	} {
		b.do(chromedp.Navigate(d.URL + "/" + view))
		b.shows(text)
	}
	b.checkQuiet()
}

// TestDoubts wants the page to say what the daemon doubts, and why.
func TestDoubts(t *testing.T) {
	d := newDaemon(t)
	now := time.Now()
	d.node.Doubts = []statusapi.Doubt{{
		Kind: "RulesChanged", Severity: statusapi.DoubtError, Reason: "a table is gone", Since: now.Add(-time.Hour), Next: "everything is compared",
		NextAt: new(now.Add(90 * time.Minute)),
	}}
	b := openView(t, d.URL, "")
	b.shows("IN DOUBT: a table is gone")
	b.shows("next: everything is compared, in 1 h")
	b.checkQuiet()
}

// TestBelowFolder opens the page where kubectl sluice has those of many nodes: it
// asks the daemon whose page it is.
func TestBelowFolder(t *testing.T) {
	d := newDaemon(t)
	d.services = []statusapi.Service{web("10.244.0.11:8080")}
	mux := http.NewServeMux()
	mux.Handle("/nodes/node-1/", http.StripPrefix("/nodes/node-1", d.Config.Handler))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	b := openView(t, s.URL, "nodes/node-1/#/services/default/web")
	b.shows("10.244.0.11:8080")
	b.checkQuiet()
}

// TestFlow wants the drawing to have the share of each endpoint, and what is not
// used with the reason.
func TestFlow(t *testing.T) {
	d := newDaemon(t)
	d.services = []statusapi.Service{web("10.244.0.11:8080", "10.244.0.12:8080")}
	b := openView(t, d.URL, "#/services/default/web")
	b.await(`document.querySelector("svg.flow")`)
	for box, want := range map[string]string{
		"10.244.0.11:8080": "10.244.0.11:8080, on this node, 50 %, Local 100 %",
		"10.244.0.12:8080": "10.244.0.12:8080, on another node, 50 %",
		"10.244.0.99:8080": "10.244.0.99:8080, not ready",
		"f3":               "192.0.2.7:80, ExternalIP, lost to default/older",
		"Local":            "Local, endpoints on this node",
	} {
		if got := eval[string](b, fmt.Sprintf(`document.querySelector("[data-key='box %s'] title").textContent`, box)); got != want {
			t.Errorf("box %s says %q; want %q", box, got, want)
		}
	}
	unused := eval[int](b, `document.querySelectorAll(".flow-box.unused").length`)
	if unused != 2 {
		t.Errorf("%d boxes are grey; want the lost frontend and the endpoint that is not ready", unused)
	}
}

// TestFollows wants a change of the endpoints on the page soon.
func TestFollows(t *testing.T) {
	d := newDaemon(t)
	d.services = []statusapi.Service{web("10.244.0.11:8080")}
	b := openView(t, d.URL, "#/services/default/web")
	b.shows("10.244.0.11:8080")
	d.change(func() { d.services[0] = web("10.244.0.12:8080", "10.244.0.13:8080") })
	took := b.shows("10.244.0.13:8080")
	if b.await(`!document.body.innerText.includes("10.244.0.11:8080")`); took > soon {
		t.Errorf("a new endpoint shows after %v; want %v", took, soon)
	}
	d.change(func() { d.services = nil })
	b.shows("there is no Service default/web")
}

// TestNowhere wants the drawing to say that packets end without an endpoint.
func TestNowhere(t *testing.T) {
	d := newDaemon(t)
	d.services = []statusapi.Service{web()}
	b := openView(t, d.URL, "#/services/default/web")
	b.await(`document.querySelectorAll(".flow-line.bad").length === 2`) // of both policies
	b.shows("NoEndpoints")
}

// TestManyEndpoints wants a Service with very many to be cut into pages, and no
// share where not all were told.
func TestManyEndpoints(t *testing.T) {
	d := newDaemon(t)
	var addrs []string
	for i := range 200 {
		addrs = append(addrs, fmt.Sprintf("10.244.1.%d:8080", i))
	}
	s := web(addrs...)
	s.Rows[0].Endpoints, s.Rows[0].Total = s.Rows[0].Endpoints[:200], 3000
	d.services = []statusapi.Service{s}
	b := openView(t, d.URL, "#/services/default/web")
	b.shows("3,000 endpoints")
	b.shows("and 2,988 endpoints more")
	if text := eval[string](b, `document.querySelector("svg.flow").textContent`); strings.Contains(text, "%") {
		t.Errorf("the drawing has shares of endpoints that were not told: %s", text)
	}
	b.do(chromedp.Click(chromedp.CSS(`.pages a[rel="next"]`)))
	b.await(`document.querySelector("tbody").innerText.includes("10.244.1.50:8080") && !document.querySelector("tbody").innerText.includes("10.244.1.49:8080")`)
	if n := eval[int](b, `document.querySelectorAll("tbody tr").length`); n != 50 {
		t.Errorf("a page has %d endpoints; want 50", n)
	}
	b.checkQuiet()
}

// TestHidden wants no request while nobody can look, and one at once when
// somebody can.
func TestHidden(t *testing.T) {
	d := newDaemon(t)
	d.services = []statusapi.Service{web("10.244.0.11:8080")}
	b := openView(t, d.URL, "")
	b.shows("default/web")
	set := func(hidden bool) {
		eval[bool](b, fmt.Sprintf(`Object.defineProperty(document, "hidden", {value: %v, configurable: true}) && document.dispatchEvent(new Event("visibilitychange"))`, hidden))
	}
	set(true)
	since := eval[float64](b, `performance.now()`)
	late := fmt.Sprintf(`performance.getEntriesByType("resource").filter(e => e.startTime > %f + 2000).length`, since)
	b.await(fmt.Sprintf(`performance.now() > %f + 6500`, since)) // three rounds
	if n := eval[int](b, late); n > 0 {
		t.Errorf("%d requests while the page was hidden", n)
	}
	set(false)
	if took := b.await(late + " > 0"); took > time.Second {
		t.Errorf("the first request comes %v after the page is visible again", took)
	}
}

// grown is whether a rate is that of so many connections between the first answer and the
// last, which come as they come on a busy machine. For a moment the page may not show the last.
const grown = `(() => {
	const rate = parseFloat(document.querySelector("%s .rate")?.textContent.replace(",", ""));
	const answers = performance.getEntriesByType("resource").filter((e) => e.name.includes("/v1/services/default/web?"));
	const seconds = (answers.at(-1).responseEnd - answers[0].responseEnd) / 1000;
	return Math.abs(rate * seconds / %d - 1) < 0.1;
})()`

// TestRates wants counters to become rates, of the Service and of its endpoints.
func TestRates(t *testing.T) {
	d := newDaemon(t)
	count := func(n uint64) {
		s := web("10.244.0.11:8080")
		s.Traffic = &statusapi.Traffic{Connections: &n}
		s.Rows[0].Endpoints[0].Traffic = s.Traffic
		d.services = []statusapi.Service{s}
	}
	count(1000)
	b := openView(t, d.URL, "#/services/default/web")
	b.shows("1,000")
	d.change(func() { count(3000) })
	for _, place := range []string{".tile", "td"} {
		b.await(fmt.Sprintf(grown, place, 2000))
	}
	d.change(func() { count(10) }) // the daemon was started anew
	b.await(`document.querySelector(".tile + .tile dd").textContent === "10"`)
	if eval[bool](b, `!!document.querySelector(".rate")`) {
		t.Error("there is a rate over a restart of the daemon")
	}
	b.checkQuiet()
}

// TestStale wants the page to say so when the daemon is gone, or hangs, and to
// recover.
func TestStale(t *testing.T) {
	d := newDaemon(t)
	d.services = []statusapi.Service{web("10.244.0.11:8080")}
	b := openView(t, d.URL, "")
	b.shows("default/web")
	d.mu.Lock() // no answer comes any more
	took := b.shows("Stale since ")
	if took > soon {
		t.Errorf("it takes %v to say that the data is stale; want %v", took, soon)
	}
	if eval[float64](b, `+getComputedStyle(document.querySelector("main")).opacity`) > 0.9 {
		b.await(`getComputedStyle(document.querySelector("main")).opacity < 0.5`)
	}
	d.mu.Unlock()
	b.await(`document.getElementById("stale").hidden && !document.body.classList.contains("stale")`)

	d.CloseClientConnections()
	d.Close()
	if took := b.shows("Stale since "); took > soon {
		t.Errorf("it takes %v to say that the daemon is gone; want %v", took, soon)
	}
}

// TestHostileText wants text from objects to stay text.
func TestHostileText(t *testing.T) {
	const hostile = `<img src=x onerror="window.hit=1"><script>window.hit=1</script>`
	d := newDaemon(t)
	s := web("10.244.0.11:8080")
	s.Reason, s.Rows[0].Endpoints[1].Reason, s.Rows[0].Name = hostile, hostile, hostile
	s.State, s.Name = statusapi.Refused, hostile
	s.Found = []statusapi.Problem{{Object: hostile, Field: hostile, Reason: hostile}}
	d.services, d.problems = []statusapi.Service{s}, s.Found
	d.node.Health = statusapi.Health{Reason: hostile}
	d.changes = []statusapi.Change{{What: hostile, ServicePort: hostile, Detail: hostile}}
	d.explanation = statusapi.Explanation{
		Packet: statusapi.ExplainedPacket{Origin: hostile, Why: hostile, To: hostile}, Verdict: "drop", Reason: hostile, Message: hostile,
		NotUsed: []statusapi.Endpoint{{Address: hostile, Reason: hostile}}, Try: []string{hostile}, Notes: []string{hostile},
	}
	b := openView(t, d.URL, "")
	for _, view := range []string{"", "#/problems", "#/changes", "#/explain?to=x", "#/services/default/" + url.PathEscape(hostile)} {
		b.do(chromedp.Navigate(d.URL + "/" + view))
		b.shows("onerror=")
		if n := eval[int](b, `document.querySelectorAll("main img, main script, header .health img").length`); n > 0 {
			t.Errorf("view %q has %d elements from text", view, n)
		}
	}
	if eval[bool](b, `window.hit !== undefined`) {
		t.Error("text was run")
	}
	b.checkQuiet()
}

// TestManyServices wants 30,000 Services to be as easy as ten.
func TestManyServices(t *testing.T) {
	d := newDaemon(t)
	for i := range 30_000 {
		s := web("10.244.0.11:8080")
		s.Namespace, s.Name = fmt.Sprintf("team-%02d", i%40), fmt.Sprintf("service-%05d", i)
		d.services = append(d.services, s)
	}
	b := openView(t, d.URL, "")
	b.shows("30,000 Services")
	b.do(chromedp.Focus(chromedp.CSS(`input[name="filter"]`)), chromedp.KeyEvent("service-29999"))
	if took := b.shows("1 Service match"); took > soon {
		t.Errorf("the filter takes %v", took)
	}
	b.do(chromedp.Navigate(d.URL + "/#/"))
	b.shows("30,000 Services")
	first := eval[string](b, `document.querySelector(".row-link").textContent`)
	b.do(chromedp.Click(chromedp.CSS(`.pages a[rel="next"]`)))
	b.await(fmt.Sprintf(`document.querySelector(".row-link").textContent !== %q && [...document.querySelectorAll(".pages a")].some(a => a.textContent === "First")`, first))
	if n := eval[int](b, `document.querySelectorAll("*").length`); n > 2000 {
		t.Errorf("the page has %d elements", n)
	}
	b.checkQuiet()
}

// TestKeyboard reaches a Service, and comes back, without a mouse.
func TestKeyboard(t *testing.T) {
	d := newDaemon(t)
	for i := range 5 {
		s := web("10.244.0.11:8080")
		s.Name = fmt.Sprintf("web-%d", i)
		d.services = append(d.services, s)
	}
	b := openView(t, d.URL, "")
	b.shows("default/web-4")
	b.do(chromedp.KeyEvent("/"), chromedp.KeyEvent("web-"), chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent(kb.ArrowDown))
	b.await(`document.activeElement.textContent === "default/web-1"`)
	// Another round of requests leaves the focus where it is, though rows came before it.
	d.change(func() { s := web(); s.Name = "web-0a"; d.services = append(d.services, s) })
	b.shows("default/web-0a")
	b.await(`document.activeElement.textContent === "default/web-1"`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.await(`location.hash === "#/services/default/web-1" && document.querySelector("svg.flow")`)
	b.do(chromedp.KeyEvent(kb.Escape))
	b.await(`location.hash.startsWith("#/?filter=")`)
	b.shows("default/web-4")
	b.checkQuiet()
}

// TestFilterAndLeave leaves the list before the page has asked for what was typed.
func TestFilterAndLeave(t *testing.T) {
	d := newDaemon(t)
	d.services = []statusapi.Service{web("10.244.0.11:8080")}
	b := openView(t, d.URL, "")
	b.shows("default/web")
	since := eval[float64](b, `(() => {
		const field = document.querySelector("input[name=filter]");
		field.value = "web";
		field.dispatchEvent(new Event("input", {bubbles: true}));
		document.querySelector(".row-link").click();
		return performance.now();
	})()`)
	b.await(fmt.Sprintf(`performance.now() > %f + 500`, since)) // longer than it waits for more keys
	if hash := eval[string](b, `location.hash`); hash != "#/services/default/web" {
		t.Errorf("the page went back to %s", hash)
	}
}

// TestPhone wants no view to be wider than a phone.
func TestPhone(t *testing.T) {
	d := newDaemon(t)
	d.services = []statusapi.Service{web("10.244.0.11:8080", "10.244.0.12:8080")}
	d.problems = []statusapi.Problem{{Object: "EndpointSlice default/a-very-long-name-of-an-endpointslice-that-does-not-end", Field: "endpoints[0].addresses[0]", Reason: "is not an address"}}
	b := newTab(t, d.URL)
	b.do(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile))
	for _, view := range []string{"", "#/services/default/web", "#/problems", "#/changes", "#/explain"} {
		b.do(chromedp.Navigate(d.URL + "/" + view))
		b.await(`!document.body.innerText.includes("Asking the daemon")`)
		if w := eval[int](b, `document.documentElement.scrollWidth`); w > 390 {
			t.Errorf("view %q is %d pixels wide", view, w)
		}
	}
	b.checkQuiet()
}
