package traffic

import "testing"

func TestSCTPPacketsAreReadAsWritten(t *testing.T) {
	type packet struct {
		src, dst     uint16
		verification uint32
		kind         uint8
		tag          uint32
		text         string
	}
	for _, want := range []packet{
		{src: 1, dst: 65535, kind: sctpInit, tag: 7},
		{80, 40000, 9, sctpInitAck, 7, "10.0.0.1:80 10.0.0.2\n"},
		{80, 40000, 9, sctpInitAck, 7, "four"},
	} {
		p := sctpPacket{Src: want.src, Dst: want.dst, Verification: want.verification, Kind: want.kind, Tag: want.tag}
		b := p.marshal([]byte(want.text))
		q, text, ok := parseSCTP(b)
		if got := (packet{q.Src, q.Dst, q.Verification, q.Kind, q.Tag, string(text)}); !ok || got != want {
			t.Errorf("got %+v, %t, want %+v", got, ok, want)
		}
		b[2] ^= 1
		if got, _, ok := parseSCTP(b); ok {
			t.Errorf("a damaged packet was read as %+v", got)
		}
	}
	if _, _, ok := parseSCTP(make([]byte, 5)); ok {
		t.Error("a short packet was read")
	}
}
