package netlink

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// script is a Socket that answers with the given datagrams and errors.
type script struct {
	sent    int
	answers []any
}

func (s *script) Send([]byte) error { s.sent++; return nil }

func (s *script) Receive(b []byte, _ int) (int, error) {
	if len(s.answers) == 0 {
		return 0, unix.EAGAIN
	}
	next := s.answers[0]
	s.answers = s.answers[1:]
	if err, ok := next.(error); ok {
		return 0, err
	}
	return copy(b, next.([]byte)), nil
}

func (s *script) Close() error { return nil }

// datagram returns a datagram with one message.
func datagram(seq uint32, kind, flags uint16, number uint32) []byte {
	b := Builder{seq: seq - 1}
	b.Begin(kind, flags, [4]byte(binary.NativeEndian.AppendUint32(nil, number)))
	return b.Bytes()
}

const part = 100

func errno(err unix.Errno) uint32 { return uint32(-int32(err)) }

// TestAsk checks answers that are interrupted, overrun, refused, or to another request.
func TestAsk(t *testing.T) {
	tests := []struct {
		name    string
		answers []any
		want    []uint32
		err     error
	}{
		{"two parts", []any{datagram(1, part, 0, 7), datagram(1, part, 0, 8), datagram(1, unix.NLMSG_DONE, 0, 0)}, []uint32{7, 8}, nil},
		{"an acknowledgement", []any{datagram(1, unix.NLMSG_ERROR, 0, 0)}, nil, nil},
		{"refused", []any{datagram(1, unix.NLMSG_ERROR, 0, errno(unix.EPERM))}, nil, unix.EPERM},
		{"refused at the end", []any{datagram(1, part, 0, 7), datagram(1, unix.NLMSG_DONE, 0, errno(unix.ENOMEM))}, []uint32{7}, unix.ENOMEM},
		{"interrupted", []any{datagram(1, part, unix.NLM_F_DUMP_INTR, 7), datagram(1, part, 0, 8), datagram(1, unix.NLMSG_DONE, 0, 0)}, []uint32{7, 8}, ErrInterrupted},
		{"overrun", []any{datagram(1, part, 0, 7), unix.ENOBUFS, datagram(1, unix.NLMSG_DONE, 0, 0)}, []uint32{7}, ErrInterrupted},
		{"a signal", []any{unix.EINTR, datagram(1, part, 0, 7), datagram(1, unix.NLMSG_DONE, 0, 0)}, []uint32{7}, nil},
		{"the rest of an older answer", []any{datagram(0, part, 0, 6), datagram(0, unix.NLMSG_DONE, 0, 0), datagram(1, part, 0, 7), datagram(1, unix.NLMSG_DONE, 0, 0)}, []uint32{7}, nil},
		{"silence", []any{datagram(1, part, 0, 7)}, []uint32{7}, unix.EAGAIN},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := New(&script{answers: tt.answers})
			c.Request(part, unix.NLM_F_DUMP, [4]byte{})
			var got []uint32
			err := c.Ask(func(m Message) { got = append(got, binary.NativeEndian.Uint32(m.Body)) })
			if !errors.Is(err, tt.err) || (tt.err == nil) != (err == nil) || !slices.Equal(got, tt.want) {
				t.Errorf("got %v, error %v; want %v, %v", got, err, tt.want, tt.err)
			}
		})
	}
}

// TestRetryInterrupted checks that an interrupted listing is repeated a limited number of times.
func TestRetryInterrupted(t *testing.T) {
	for _, interruptions := range []int{0, 2, 9} {
		n := 0
		err := RetryInterrupted(t.Context(), 3, func() error {
			if n++; n <= interruptions {
				return ErrInterrupted
			}
			return nil
		})
		if n != min(interruptions+1, 3) || (err != nil) != (interruptions > 3) {
			t.Errorf("%d interruptions: %d attempts, error %v", interruptions, n, err)
		}
	}
}

// TestTooLong checks that an attribute that is too long for its 16-bit length is not sent.
func TestTooLong(t *testing.T) {
	kernel := &script{}
	c := New(kernel)
	c.Request(part, 0, [4]byte{})
	c.Nest(1, func() { c.Raw(2, string(make([]byte, 40000))); c.Raw(3, string(make([]byte, 40000))) })
	if err := c.Ask(func(Message) {}); err == nil || kernel.sent != 0 {
		t.Errorf("error %v, sent %d times", err, kernel.sent)
	}
}

// FuzzAttributes checks that attributes are read as they were built, and that no input
// makes the reader panic.
func FuzzAttributes(f *testing.F) {
	f.Add(uint16(1), "text", uint32(7), []byte{255, 255, 1, 0, 3})
	f.Fuzz(func(t *testing.T, kind uint16, text string, number uint32, junk []byte) {
		if kind = kind % (1 << 14); len(text) > 1000 {
			text = text[:1000]
		}
		var b Builder
		b.Begin(part, 0, [4]byte{})
		b.Nest(kind, func() { b.Raw(kind, text); b.U32(kind+1, number) })
		for m := range Messages(b.Bytes()) {
			if got := m.Attrs().Get(kind, kind); string(got) != text {
				t.Errorf("text is %q, want %q", got, text)
			}
			if got := m.Attrs().Number(kind, (kind+1)%(1<<14)); got != uint64(number) && kind+1 < 1<<14 {
				t.Errorf("number is %d, want %d", got, number)
			}
		}
		for m := range Messages(junk) {
			for _, v := range m.Attrs().All() {
				_ = v.Text(kind)
			}
		}
	})
}
