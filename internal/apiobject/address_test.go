package apiobject

import "testing"

// TestLenientParse reads addresses and ranges as API servers of all times have
// accepted them.
func TestLenientParse(t *testing.T) {
	tests := []struct{ in, addr, prefix string }{
		{"10.0.0.1", "10.0.0.1", ""},
		{"010.000.00.001", "10.0.0.1", ""},
		{"010.0.0.256", "", ""},
		{"10.0.0", "", ""},
		{"10.0.0.1.1", "", ""},
		{"10..0.1", "", ""},
		{"", "", ""},
		{" 10.0.0.1", "", ""},
		{"fd00::1", "fd00::1", ""},
		{"fd00::1%lo", "", ""},
		{"fd00::g", "", ""},
		{"0.0.0.0", "", ""},
		{"ff02::1", "", ""},
		{"127.0.0.1", "127.0.0.1", ""},
		{"10.0.0.1/8", "", "10.0.0.0/8"},
		{"010.0.0.0/08", "", "10.0.0.0/8"},
		{"0.0.0.0/0", "", "0.0.0.0/0"},
		{"00.0.0.0/00", "", "0.0.0.0/0"},
		{"10.0.0.0/33", "", ""},
		{"10.0.0.0/", "", ""},
		{"10.0.0.0/-1", "", ""},
		{"fd00::1/64", "", "fd00::/64"},
		{"::ffff:10.0.0.0/104", "", "10.0.0.0/8"},
		{"::ffff:10.0.0.0/95", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			p := parser{}
			a, err := p.parseAddr(tt.in)
			if got := a.String(); err == nil && got != tt.addr || err != nil && tt.addr != "" {
				t.Errorf("address %s, %v; want %q", got, err, tt.addr)
			}
			r, err := p.parsePrefix(tt.in)
			if got := r.Masked().String(); err == nil && got != tt.prefix || err != nil && tt.prefix != "" {
				t.Errorf("prefix %s, %v; want %q", got, err, tt.prefix)
			}
		})
	}
}
