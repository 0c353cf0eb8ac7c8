package ct

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

const udp, tcp = unix.IPPROTO_UDP, unix.IPPROTO_TCP

var addresses = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })

func flow(protocol uint8, src, dst, by string) Flow {
	a := netip.MustParseAddrPort
	return Flow{Protocol: protocol, Orig: Tuple{a(src), a(dst)}, Reply: Tuple{a(by), a(src)}}
}

// answer is a datagram of a dump.
func answer(seq uint32, flags uint16, flows ...Flow) []byte {
	var w netlink.Builder
	for _, f := range flows {
		w.Begin(unix.NFNL_SUBSYS_CTNETLINK<<8, flags, netlink.Netfilter(netlink.IPv4, 0))
		encodeFlow(&w, &f)
		encodeTuple(&w, nl.CTA_TUPLE_REPLY, f.Protocol, f.Reply)
	}
	return numbered(&w, seq)
}

// ending is the last datagram of a dump, or with an error its only one.
func ending(seq uint32, err syscall.Errno) []byte {
	kind := uint16(unix.NLMSG_DONE)
	if err != 0 {
		kind = unix.NLMSG_ERROR
	}
	var w netlink.Builder
	w.Begin(kind, 0, [4]byte(binary.NativeEndian.AppendUint32(nil, uint32(-int32(err)))))
	return numbered(&w, seq)
}

// numbered makes messages the answer to a request.
func numbered(w *netlink.Builder, seq uint32) []byte {
	b := w.Bytes()
	for m := b; len(m) > 0; m = m[binary.NativeEndian.Uint32(m):] {
		binary.NativeEndian.PutUint32(m[8:], seq)
	}
	return b
}

// script is a kernel that says what it was told to say.
type script struct {
	asked int
	says  []any // datagrams and errors
}

func (s *script) Send([]byte) error {
	s.asked++
	return nil
}

func (s *script) Receive(b []byte, _ int) (int, error) {
	if len(s.says) == 0 {
		return 0, unix.EAGAIN
	}
	next := s.says[0]
	s.says = s.says[1:]
	if err, ok := next.(error); ok {
		return 0, err
	}
	return copy(b, next.([]byte)), nil
}

func (s *script) Close() error { return nil }

// TestDumpInTrouble covers interrupted, overrun, refused and malformed dumps.
func TestDumpInTrouble(t *testing.T) {
	const interrupted = unix.NLM_F_DUMP_INTR
	one := flow(udp, "10.1.0.7:4000", "10.96.0.10:53", "10.1.0.2:5353")
	two := flow(udp, "10.1.0.7:4001", "192.0.2.9:53", "192.0.2.9:53")
	other := flow(tcp, "10.1.0.7:4000", "10.96.0.10:53", "10.1.0.2:5353")
	var always []any
	for seq := range uint32(dumpTries) {
		always = append(always, answer(seq+1, interrupted, one), ending(seq+1, 0))
	}
	tests := []struct {
		name  string
		says  []any
		want  []Flow
		err   error
		dumps int
	}{
		{"all is well", []any{answer(1, 0, one), answer(1, 0, two), ending(1, 0)}, []Flow{one, two}, nil, 1},
		{"interrupted once", []any{answer(1, interrupted, one), ending(1, 0), answer(2, 0, one, two), ending(2, 0)}, []Flow{one, two}, nil, 2},
		{"interrupted always", always, []Flow{one}, ErrIncomplete, dumpTries},
		{"overrun", []any{answer(1, 0, one), unix.ENOBUFS, ending(1, 0), answer(2, 0, one, two), ending(2, 0)}, []Flow{one, two}, nil, 2},
		{"rest of an older answer", []any{answer(0, 0, two), ending(0, 0), answer(1, 0, one), ending(1, 0)}, []Flow{one}, nil, 1},
		{"filter refused", []any{ending(1, unix.EOPNOTSUPP), answer(2, 0, one, other), ending(2, 0)}, []Flow{one}, nil, 2},
		{"no connection tracking", []any{ending(1, unix.EINVAL), ending(2, unix.EINVAL)}, nil, unix.EINVAL, 2},
		{"no permission", []any{ending(1, unix.EPERM)}, nil, unix.EPERM, 1},
		{"silence", nil, nil, unix.EAGAIN, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			kernel := &script{says: tt.says}
			got, err := (&Conn{nl: netlink.New(kernel)}).Dump(t.Context(), Filter{Protocol: udp}, func(*Flow) bool { return true })
			if !errors.Is(err, tt.err) || kernel.asked != tt.dumps {
				t.Errorf("error %v after %d dumps; want %v after %d", err, kernel.asked, tt.err, tt.dumps)
			}
			if diff := cmp.Diff(tt.want, got, addresses); diff != "" {
				t.Errorf("flows mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzDecode wants no bytes to break the decoder, and what it accepts to be whole.
func FuzzDecode(f *testing.F) {
	four, six := flow(udp, "10.1.0.7:4000", "10.96.0.10:53", "10.1.0.2:5353"), flow(tcp, "[fd00::7]:4000", "[fd96::a]:53", "[fd00::2]:5353")
	four.Zone = 7
	f.Add(answer(1, 0, four))
	f.Add(answer(1, 0, six))
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		for r := range netlink.Messages(b) {
			var flow Flow
			if !decode(r.Attrs(), &flow) {
				continue
			}
			for _, a := range []netip.AddrPort{flow.Orig.Src, flow.Orig.Dst, flow.Reply.Src, flow.Reply.Dst} {
				if !a.Addr().IsValid() {
					t.Errorf("%v is a flow with an address missing", &flow)
				}
			}
		}
	})
}
