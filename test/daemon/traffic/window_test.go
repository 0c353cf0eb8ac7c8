package traffic

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"sluice/test/daemon/testbed"
)

// TestOutsideTheWindow has an endpoint send a segment outside the window on an open connection.
// Connection tracking takes it for invalid, so that the rules do not translate it; the client,
// which does not know the endpoint's address, would answer with a reset, and the endpoint end the
// connection. Mode nftables is known to let that happen, as kube-proxy's does, where it is set.
func TestOutsideTheWindow(t *testing.T) {
	for mode, survives := range map[string]bool{"": true, "iptables": true, "nftables": false} {
		t.Run("mode "+mode, func(t *testing.T) {
			bed := testbed.New(t)
			d := bed.Start(nil, "--proxy-mode", mode)
			d.AwaitFirstSync()
			open := bed.OpenEcho()
			raw := rawSocket(bed)
			for range 5 {
				bed.WantAlive(open, "before the segment")
				sendOutsideTheWindow(t, raw)
				if !survives {
					testbed.Eventually(t, "the end of the connection", func() bool { return !alive(open) })
					return
				}
			}
			bed.WantAlive(open, "after the segments")
		})
	}
}

// alive sends a line over an open connection and returns whether it comes back.
func alive(c net.Conn) bool {
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte("ping")); err != nil {
		return false
	}
	_, err := io.ReadFull(c, make([]byte, 4))
	return err == nil
}

// rawSocket returns a socket in pod A that sees and sends any TCP segment.
func rawSocket(bed *testbed.Testbed) *net.IPConn {
	bed.T.Helper()
	var raw *net.IPConn
	if err := bed.Pods[testbed.PodA].Do(func() (err error) {
		raw, err = net.ListenIP("ip4:tcp", &net.IPAddr{IP: testbed.PodA.AsSlice()})
		return err
	}); err != nil {
		bed.T.Fatal(err)
	}
	bed.T.Cleanup(func() { _ = raw.Close() })
	return raw
}

// sendOutsideTheWindow reads the next line that a client sends to pod A, and sends the client a
// segment of that connection far outside the window.
func sendOutsideTheWindow(t *testing.T, raw *net.IPConn) {
	t.Helper()
	const line, header = 4, 20
	if err := raw.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2000)
	for {
		n, from, err := raw.ReadFromIP(b)
		if err != nil {
			t.Fatalf("read the client's segments: %v", err)
		}
		offset := int(b[12]>>4) * 4
		if n-offset != line || string(b[offset:n]) != "ping" {
			continue
		}
		seq, ack := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
		s := make([]byte, header, header+1)
		copy(s[0:2], b[2:4]) // the ports the other way round
		copy(s[2:4], b[0:2])
		binary.BigEndian.PutUint32(s[4:], ack+line+1<<30)
		binary.BigEndian.PutUint32(s[8:], seq+line)
		s[12], s[13] = header/4<<4, 0x18 // PSH, ACK
		binary.BigEndian.PutUint16(s[14:], 1000)
		s = append(s, 'x')
		binary.BigEndian.PutUint16(s[16:], checksum(testbed.PodA.AsSlice(), from.IP.To4(), s))
		if _, err := raw.WriteToIP(s, from); err != nil {
			t.Fatal(err)
		}
		return
	}
}

// checksum returns the checksum of a TCP segment.
func checksum(src, dst net.IP, segment []byte) uint16 {
	const protocol = 6
	b := append(append(append([]byte{}, src...), dst...), 0, protocol, byte(len(segment)>>8), byte(len(segment)))
	if b = append(b, segment...); len(b)%2 == 1 {
		b = append(b, 0)
	}
	sum := uint32(0)
	for ; len(b) > 0; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
