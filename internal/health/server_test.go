package health

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// running is a server under test.
type running struct {
	*Server
	t     *testing.T
	stop  context.CancelFunc
	ended chan struct{} // closed when Run has returned
	err   error         // what it returned
}

// run starts a server that says hello, unless it has another handler.
func run(t *testing.T, s ServerSettings) *running {
	t.Helper()
	s.Name = "test"
	if s.Handler == nil {
		s.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	}
	ctx, stop, _ := logged(t)
	r := &running{Server: NewServer(s), t: t, stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.err = r.Run(ctx)
	}()
	t.Cleanup(func() { r.end() })
	return r
}

// end stops the server and returns what Run did.
func (r *running) end() error {
	r.t.Helper()
	r.stop()
	return r.wait()
}

func (r *running) wait() error {
	r.t.Helper()
	select {
	case <-r.ended:
		return r.err
	case <-time.After(10 * time.Second):
		r.t.Fatal("the server does not end")
		return nil
	}
}

// boundAt returns where a server listens; the invalid address: nowhere.
func boundAt(s *Server) netip.AddrPort {
	if l := s.cur.Load(); l != nil {
		return addressOf(l.listener)
	}
	return netip.AddrPort{}
}

func addressOf(l net.Listener) netip.AddrPort {
	a := l.Addr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// bound waits until the server listens, at another address than before.
func (r *running) bound(before netip.AddrPort) netip.AddrPort {
	r.t.Helper()
	eventually(r.t, "it listens", func() bool { a := boundAt(r.Server); return a.IsValid() && a != before })
	return boundAt(r.Server)
}

// eventually polls until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("not so after 10 s: %s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// client makes a new connection for each request.
func client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
}

func get(t *testing.T, a netip.AddrPort) (string, error) {
	t.Helper()
	r, err := client().Get("http://" + a.String() + "/")
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return string(body), err
}

func wantHello(t *testing.T, a netip.AddrPort) {
	t.Helper()
	if body, err := get(t, a); body != "hello" || err != nil {
		t.Errorf("%v: %q, %v; want hello", a, body, err)
	}
}

func wantRefused(t *testing.T, a netip.AddrPort) {
	t.Helper()
	if body, err := get(t, a); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v: %q, %v; want a refusal", a, body, err)
	}
}

// taken returns an address that somebody else listens at.
func taken(t *testing.T) (netip.AddrPort, net.Listener) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return addressOf(l), l
}

func TestServerAnswersUntilItEnds(t *testing.T) {
	s := run(t, ServerSettings{Address: loopback})
	at := s.bound(netip.AddrPort{})
	if at.Addr() != loopback.Addr() {
		t.Errorf("bound to %v; want %v", at, loopback.Addr())
	}
	wantHello(t, at)
	wantRefused(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), at.Port()))
	if err := s.end(); err != nil {
		t.Errorf("Run returned %v; want nil", err)
	}
	wantRefused(t, at)
	if boundAt(s.Server).IsValid() {
		t.Errorf("bound to %v after the end", boundAt(s.Server))
	}
}

func TestEmptyAddressIsSilent(t *testing.T) {
	s := run(t, ServerSettings{HardFail: true})
	s.SetAddress(loopback)
	at := s.bound(netip.AddrPort{})
	wantHello(t, at)
	s.SetAddress(netip.AddrPort{})
	eventually(t, "it is silent", func() bool { return !boundAt(s.Server).IsValid() })
	wantRefused(t, at)
}

func TestServerMoves(t *testing.T) {
	s := run(t, ServerSettings{Address: loopback})
	first := s.bound(netip.AddrPort{})
	s.SetAddress(netip.MustParseAddrPort("127.0.0.2:0"))
	second := s.bound(first)
	wantHello(t, second)
	wantRefused(t, first)
	s.SetAddress(second) // What it was asked for is another text, so it moves onto itself.
	eventually(t, "it listens again", func() bool { body, err := get(t, second); return body == "hello" && err == nil })
}

// TestServerMovesWithinOnePort changes from the unspecified to a single address, which
// conflict with each other.
func TestServerMovesWithinOnePort(t *testing.T) {
	l := newLab(t)
	wide, narrow := netip.MustParseAddrPort("0.0.0.0:10256"), netip.MustParseAddrPort("127.0.0.1:10256")
	other := netip.MustParseAddrPort("192.168.0.2:10256")
	s := NewServer(ServerSettings{Name: "test", Address: wide, Handler: http.NotFoundHandler()})
	ctx, stop, _ := logged(t)
	ended := make(chan error, 1)
	go func() { ended <- l.Node().Do(func() error { return s.Run(ctx) }) }()
	eventually(t, "all addresses answer", func() bool { return l.code(other) == 404 && l.code(narrow) == 404 })
	s.SetAddress(narrow)
	eventually(t, "one address answers", func() bool { return l.code(narrow) == 404 && l.code(other) == 0 })
	s.SetAddress(wide)
	eventually(t, "all addresses answer again", func() bool { return l.code(other) == 404 && l.code(narrow) == 404 })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestRequestUnderWayOutlivesTheMove holds a request while the server leaves.
func TestRequestUnderWayOutlivesTheMove(t *testing.T) {
	began, goOn := make(chan struct{}), make(chan struct{})
	slow := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(began)
		<-goOn
		_, _ = io.WriteString(w, "late")
	})
	s := run(t, ServerSettings{Address: loopback, Handler: slow})
	first := s.bound(netip.AddrPort{})
	answer := make(chan string, 1)
	go func() { body, _ := get(t, first); answer <- body }()
	<-began
	s.SetAddress(netip.MustParseAddrPort("127.0.0.2:0"))
	s.bound(first)
	wantRefused(t, first)
	close(goOn)
	if body := <-answer; body != "late" {
		t.Errorf("answer %q; want late", body)
	}
}

func TestHardFail(t *testing.T) {
	at, _ := taken(t)
	err := run(t, ServerSettings{Address: at, HardFail: true}).wait()
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), at.String()) || !strings.HasPrefix(err.Error(), "serve test: ") {
		t.Errorf("error %v; want one that names the server and its address", err)
	}
}

// TestHardFailOfAChange changes to an address that is in use: the server does not end, and
// binds the address when it is free. Fake time passes only while the server has no listener.
func TestHardFailOfAChange(t *testing.T) {
	at, other := taken(t)
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(ServerSettings{Name: "test", Address: loopback, HardFail: true, Handler: http.NotFoundHandler()})
		ctx, stop, log := logged(t)
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		for !boundAt(s).IsValid() {
			runtime.Gosched()
		}
		s.SetAddress(at)
		for !strings.Contains(log(), "Server does not listen, retrying") {
			runtime.Gosched()
		}
		other.Close()
		time.Sleep(bindRetry)
		for !boundAt(s).IsValid() {
			runtime.Gosched()
		}
		if boundAt(s) != at {
			t.Errorf("bound to %v; want %v", boundAt(s), at)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestBindIsRetried waits in fake time. The server's listener stops that time,
// so the moment when it opens is the last one.
func TestBindIsRetried(t *testing.T) {
	at, other := taken(t)
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(ServerSettings{Name: "test", Address: at, Handler: http.NotFoundHandler()})
		ctx, stop, log := logged(t)
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		time.Sleep(3*bindRetry - time.Millisecond)
		if n := strings.Count(log(), "Server does not listen, retrying"); n != 1 {
			t.Errorf("logged %d times; want once:\n%s", n, log())
		}
		other.Close()
		time.Sleep(time.Millisecond)
		for !boundAt(s).IsValid() {
			runtime.Gosched()
		}
		if boundAt(s) != at {
			t.Errorf("bound to %v; want %v", boundAt(s), at)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestMoveEndsARetry(t *testing.T) {
	at, _ := taken(t)
	s := run(t, ServerSettings{Address: at})
	s.SetAddress(loopback)
	wantHello(t, s.bound(netip.AddrPort{}))
}

// TestFailedListenerIsReplaced closes the listener without the server's knowledge.
func TestFailedListenerIsReplaced(t *testing.T) {
	s := NewServer(ServerSettings{Name: "test", Address: loopback, Handler: http.NotFoundHandler()})
	ctx, stop, _ := logged(t)
	defer stop()
	if err := s.ensureListening(ctx); err != nil {
		t.Fatal(err)
	}
	cur := s.cur.Load()
	cur.listener.Close()
	<-cur.ended
	if err := s.ensureListening(ctx); err == nil || s.cur.Load() != nil {
		t.Errorf("error %v, listening %v; want an error and nothing", err, boundAt(s))
	}
	if err := s.ensureListening(ctx); err != nil || s.cur.Load() == nil {
		t.Errorf("error %v, listening %v; want it to listen", err, boundAt(s))
	}
	s.stopListening()
	s.closing.Wait()
}

// TestTLS serves with a certificate, in version 2 of HTTP too, and nothing
// without it.
func TestTLS(t *testing.T) {
	issued := httptest.NewTLSServer(nil)
	issued.Close()
	r := run(t, ServerSettings{Address: loopback, TLS: &tls.Config{Certificates: issued.TLS.Certificates}})
	at := r.bound(netip.AddrPort{})
	roots := issued.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	for version := 1; version <= 2; version++ {
		c := &http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: version == 2, DisableKeepAlives: true,
		}}
		resp, err := c.Get("https://" + at.String() + "/")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if string(body) != "hello" || resp.ProtoMajor != version || err != nil {
			t.Errorf("%q by %s, error %v; want hello by HTTP/%d", body, resp.Proto, err, version)
		}
	}
	if body, err := get(t, at); body == "hello" {
		t.Errorf("plain HTTP: %q, %v", body, err)
	}
}

// TestHeaderLimit checks that a request with a too large header is rejected.
func TestHeaderLimit(t *testing.T) {
	r := run(t, ServerSettings{Address: loopback})
	at := r.bound(netip.AddrPort{})
	for size, want := range map[int]int{maxHeader / 2: http.StatusOK, 2 * maxHeader: http.StatusRequestHeaderFieldsTooLarge} {
		req, err := http.NewRequest(http.MethodGet, "http://"+at.String()+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", strings.Repeat("x", size))
		resp, err := client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%d bytes: HTTP %d, want %d", size, resp.StatusCode, want)
		}
	}
}
