package ebpf_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/ebpf"
	"sluice/internal/proxy"
)

// inBackground runs a function until the test ends, and reports its error.
func (h *host) inBackground(do func(context.Context) error) {
	ctx, stop := context.WithCancel(h.Context())
	ended := make(chan error, 1)
	go func() { ended <- do(ctx) }()
	h.cleanup(func() error { stop(); return <-ended })
}

// open opens the dataplane without running it.
func (h *host) open() {
	h.Helper()
	err := h.lab.Node().Do(func() (err error) {
		h.d, err = ebpf.Open(h.Context(), h.Settings)
		return err
	})
	if err != nil {
		h.Fatal(err)
	}
	h.cleanup(h.d.Close)
}

// TestCutIsRetried checks that sockets are cut even if that failed at first.
func TestCutIsRetried(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("dns", proxy.UDP, dns, pods[0]))
	s := h.socket(h.client, proxy.UDP, dns)
	if !s.translated() {
		t.Fatal("the socket was translated by the rules")
	}
	repair, err := h.d.BreakMap("settings")
	if err != nil {
		t.Fatal(err)
	}
	h.change(row("dns", proxy.UDP, dns, pods[1]))
	h.eventually("Run has looked for sockets to cut", func() bool { return !h.d.CheckStalePending() })
	for range 20 { // so that Run has failed, too
		if err := h.d.CutStale(); err == nil {
			t.Error("CutStale returned no error though settings cannot be written")
		}
	}
	repair()
	h.eventually("the socket is cut", func() bool {
		_, err := unix.Write(s.fd, []byte("?"))
		return errors.Is(err, unix.EPERM)
	})
}

// TestWatchHostAfterAnError checks that changes are noticed after the netlink socket failed.
func TestWatchHostAfterAnError(t *testing.T) {
	h := newHost(t)
	h.open()
	changed := make(chan struct{}, 1)
	h.inBackground(func(ctx context.Context) error { h.d.WatchHost(ctx, changed); return nil })
	wantNotified := func(what string) {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			t.Fatalf("no notification %s", what)
		}
	}
	none, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer none.Close()
	socket, err := unix.Dup(h.d.HostEventsFD())
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(socket)
	h.must(unix.Dup3(int(none.Fd()), h.d.HostEventsFD(), unix.O_CLOEXEC))
	wantNotified("after an error")
	h.must(unix.Dup3(socket, h.d.HostEventsFD(), unix.O_CLOEXEC))
	for len(changed) > 0 {
		<-changed
	}
	h.pod("10.0.0.99") // adds a route on the node
	wantNotified("of a new route")
}

// failsOnce is a reader whose first read fails.
type failsOnce struct {
	ebpf.QuestionReader
	failed bool
}

func (f *failsOnce) ReadInto(r *ringbuf.Record) error {
	if !f.failed {
		f.failed = true
		return unix.ENOMEM
	}
	return f.QuestionReader.ReadInto(r)
}

// TestQuestionsAreAnsweredAfterAnError checks that questions are answered after the ring
// buffer could not be read.
func TestQuestionsAreAnsweredAfterAnError(t *testing.T) {
	h := newHost(t)
	h.open()
	h.inBackground(func(ctx context.Context) error {
		return h.d.AnswerQuestions(ctx, func(r ebpf.QuestionReader) ebpf.QuestionReader { return &failsOnce{QuestionReader: r} })
	})
	h.serve(row("web", proxy.TCP, web, pods[0])) // waits until sockets are translated
}
