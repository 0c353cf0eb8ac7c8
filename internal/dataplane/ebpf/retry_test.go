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

// beside does something until the test ends, which waits for it.
func (h *host) beside(do func(context.Context) error) {
	ctx, stop := context.WithCancel(h.Context())
	ended := make(chan error, 1)
	go func() { ended <- do(ctx) }()
	h.cleanup(func() error { stop(); return <-ended })
}

// open opens the dataplane, which does nothing by itself.
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

// TestCutIsTriedAgain which could not be begun.
func TestCutIsTriedAgain(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.serve(row("dns", proxy.UDP, dns, pods[0]))
	s := h.socket(h.client, proxy.UDP, dns)
	if !s.translated() {
		t.Fatal("the rules translated")
	}
	repair, err := h.d.BreakMap("settings")
	if err != nil {
		t.Fatal(err)
	}
	h.change(row("dns", proxy.UDP, dns, pods[1]))
	h.eventually("it is looked what to cut", func() bool { return !h.d.CheckStalePending() })
	for range 20 { // so that it has failed for who looked
		if err := h.d.CutStale(); err == nil {
			t.Error("a cut was begun without permission")
		}
	}
	repair()
	h.eventually("the socket is told", func() bool {
		_, err := unix.Write(s.fd, []byte("?"))
		return errors.Is(err, unix.EPERM)
	})
}

// TestAddressesAreFollowedAfterAnError of the socket that tells of them.
func TestAddressesAreFollowedAfterAnError(t *testing.T) {
	h := newHost(t)
	h.open()
	changed := make(chan struct{}, 1)
	h.beside(func(ctx context.Context) error { h.d.WatchHost(ctx, changed); return nil })
	told := func(what string) {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			t.Fatalf("nobody is told %s", what)
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
	if err := unix.Dup3(int(none.Fd()), h.d.HostEventsFD(), unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	told("that something may have been missed")
	if err := unix.Dup3(socket, h.d.HostEventsFD(), unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	for len(changed) > 0 {
		<-changed
	}
	h.pod("10.0.0.99") // to which the node gets a route
	told("of a route")
}

// failsOnce is a ring that cannot be read at first.
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

// TestQuestionsAreAnsweredAfterAnError of the ring that they come by.
func TestQuestionsAreAnsweredAfterAnError(t *testing.T) {
	h := newHost(t)
	h.open()
	h.beside(func(ctx context.Context) error {
		return h.d.AnswerQuestions(ctx, func(r ebpf.QuestionReader) ebpf.QuestionReader { return &failsOnce{QuestionReader: r} })
	})
	h.serve(row("web", proxy.TCP, web, pods[0])) // which waits until connections are made at the socket
}
