package page

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

var screenshots = flag.String("screenshots", "", "write pictures of the page during the demo to this `FOLDER`")

// largest is how many bytes a picture may have: everyone who clones gets them.
const largest = 150 << 10

// luck is how long a round of requests may take to fall into a step of the demo.
const luck = 2 * time.Minute

// shot is one picture: of a view, once an expression is true.
type shot struct {
	name, view, wait string
	width, height    int64
	scheme           string // light or dark
}

// TestScreenshots writes the pictures that README.md shows, of the real daemon
// in the demo, which sends real requests.
func TestScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("writes pictures with -screenshots only")
	}
	b := newTab(t, startDemo(t))
	const moving = `document.querySelector(".rate")`
	// While the demo has an endpoint on another node, and connections have been counted for a while.
	const flow = `document.querySelector("[data-key='box 10.244.1.14:8443']") && document.querySelector(".curve") && ` + moving
	for _, s := range []shot{
		{"page-services", "", moving, 1120, 500, "light"},
		{"page-service", "#/services/default/gate", flow, 1120, 800, "light"},
		{"page-service-dark", "#/services/default/gate", flow, 1120, 800, "dark"},
		{"page-explain", "#/explain?to=198.51.100.80%3A443&from=203.0.113.9&in=eth0", `document.querySelector("svg.flow")`, 1120, 640, "light"},
		{"page-phone-dark", "", moving, 390, 844, "dark"},
	} {
		b.take(s)
	}
}

// startDemo runs the demo, until the test ends, and returns the page's origin.
func startDemo(t *testing.T) string {
	t.Helper()
	dir, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	demo := exec.Command(filepath.Join(dir, "demo"), "--sluice", filepath.Join(dir, "sluice"), "--examples", "../../examples", "--forever")
	out, err := demo.StdoutPipe()
	if err == nil {
		err = demo.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = demo.Process.Signal(syscall.SIGTERM)
		_ = demo.Wait()
	})
	origin := make(chan string, 1)
	go func() {
		defer close(origin)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if found := regexp.MustCompile(`http://[0-9.:]+`).FindString(lines.Text()); found != "" {
				origin <- found
			}
		}
	}()
	found, ok := <-origin
	if !ok {
		t.Fatal("the demo has ended without a link")
	}
	return found
}

// take writes a picture.
func (b *tab) take(s shot) {
	b.t.Helper()
	scheme := func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: s.scheme}},
		})
		return err
	}
	b.do(chromedp.EmulateViewport(s.width, s.height), chromedp.Func(scheme), chromedp.Navigate(b.origin+"/"+s.view))
	b.awaitFor(luck, s.wait)
	picture, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatal(err)
	}
	text := compress(b.t, picture)
	if len(text) > largest {
		b.t.Errorf("%s has %d bytes; want %d at most", s.name, len(text), largest)
	}
	if err := os.WriteFile(filepath.Join(*screenshots, s.name+".png"), text, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// compress takes the time that a browser does not.
func compress(t *testing.T, picture []byte) []byte {
	t.Helper()
	image, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, image); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
