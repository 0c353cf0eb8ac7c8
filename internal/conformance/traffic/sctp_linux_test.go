package traffic

import "testing"

func TestSCTPPacketsAreReadAsWritten(t *testing.T) {
	for _, want := range []sctpPacket{
		{src: 1, dst: 65535, kind: sctpInit, tag: 7},
		{src: 80, dst: 40000, verification: 9, kind: sctpInitAck, tag: 7, text: "10.0.0.1:80 10.0.0.2\n"},
		{src: 80, dst: 40000, verification: 9, kind: sctpInitAck, tag: 7, text: "four"},
	} {
		b := want.marshal()
		if got, ok := parseSCTP(b); !ok || got != want {
			t.Errorf("got %+v, %t, want %+v", got, ok, want)
		}
		b[2] ^= 1
		if got, ok := parseSCTP(b); ok {
			t.Errorf("a damaged packet was read as %+v", got)
		}
	}
	if _, ok := parseSCTP(make([]byte, 5)); ok {
		t.Error("a short packet was read")
	}
}
