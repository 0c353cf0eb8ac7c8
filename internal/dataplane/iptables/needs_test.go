package iptables

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// TestMissingModule has a kernel without a module that some rows need. Those must be refused
// with the reason, and the others served.
func TestMissingModule(t *testing.T) {
	sticky, sctp := plainRow(20, 1, 0), plainRow(21, 1, 0)
	sticky.Affinity = time.Hour
	sctp.Key.Protocol = proxy.SCTP
	tests := []struct {
		lack string
		row  *proxy.ServicePort
		want string
	}{
		{"-m recent", sticky, "session affinity needs kernel module xt_recent"},
		{"-m sctp", sctp, "protocol SCTP needs kernel module xt_sctp"},
	}
	for _, tt := range tests {
		d, fake := faked()
		fake.Lack(tt.lack)
		s := plainState(3)
		s.Rows[sticky.Key], s.Rows[sctp.Key] = sticky, sctp
		err := proxytest.Sync(t.Context(), d, s)
		var refused *proxytest.RefusedError
		if !errors.As(err, &refused) || len(refused.Rows) != 1 || refused.Rows[tt.row.Key] == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("a kernel that lacks %q: %v; want %v refused: %s", tt.lack, err, tt.row.Key, tt.want)
		}
		lines := saved(t, d)
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "svc-2:http") }) {
			t.Errorf("a kernel that lacks %q: the other rows are missing", tt.lack)
		}
		if slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, kubeProbe) }) {
			t.Errorf("a kernel that lacks %q: the probe was not removed", tt.lack)
		}
	}
}

// TestManyRowsMissModule has many rows that need a missing module. The program names only the
// first refused line; finding all rows must take a few restores, not one for each.
func TestManyRowsMissModule(t *testing.T) {
	d, fake := faked()
	fake.LackLine("-m sctp")
	s := plainState(3)
	const many = 200
	for i := range many {
		row := plainRow(20+i, 1, 0)
		row.Key.Protocol = proxy.SCTP
		s.Rows[row.Key] = row
	}
	err := proxytest.Sync(t.Context(), d, s)
	var refused *proxytest.RefusedError
	if !errors.As(err, &refused) || len(refused.Rows) != many {
		t.Errorf("%v; want %d rows refused", err, many)
	}
	if n := fake.Reset().Restores; n > 10 {
		t.Errorf("%d restores", n)
	}
}

// TestMissingModuleOfAllRows has a kernel without a module that every row needs: nothing is
// written, and the error contains the rule.
func TestMissingModuleOfAllRows(t *testing.T) {
	d, fake := faked()
	fake.Lack("-m addrtype")
	err := proxytest.Sync(t.Context(), d, plainState(3))
	var refused *proxytest.RefusedError
	if err == nil || errors.As(err, &refused) || !strings.Contains(err.Error(), "addrtype") {
		t.Errorf("error %v; want one that names the match and no row", err)
	}
}
