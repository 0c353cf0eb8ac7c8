package ipvs_test

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/ipvs"
)

// TestListWhileAnotherNamespaceChanges removes the virtual servers of another network
// namespace while a listing has arrived in part.
func TestListWhileAnotherNamespaceChanges(t *testing.T) {
	const here, elsewhere = 400, 200
	other := openInNamespace(t)
	_ = openInNamespace(t) // the thread is in a second namespace now
	for name, count := range map[string]func(*ipvs.Conn) (int, error){
		"servers": func(k *ipvs.Conn) (int, error) {
			all, err := k.Servers(t.Context())
			return len(all), err
		},
		"counters": func(k *ipvs.Conn) (int, error) {
			all, err := k.Counted(t.Context())
			return len(all), err
		},
	} {
		received := 0
		k, err := ipvs.OpenObserved(func() {
			if received++; received == 2 {
				do(t, other, each(ipvs.Delete, elsewhere)...)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		do(t, other, each(ipvs.Add, elsewhere)...)
		received = -1000 // what follows is no listing
		do(t, k, each(ipvs.Add, here)...)
		received = 0
		if n, err := count(k); n != here || err != nil {
			t.Errorf("%s: %d, error %v; want %d", name, n, err, here)
		}
		do(t, k, each(ipvs.Delete, here)...)
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	}
}

// each returns an operation on each of n virtual servers.
func each(verb ipvs.Verb, n int) (ops []ipvs.Op) {
	for i := range n {
		s := server(unix.IPPROTO_TCP, fmt.Sprintf("10.97.%d.%d:80", i>>8, i&255))
		ops = append(ops, ipvs.Op{Verb: verb, Server: s, Settings: ipvs.Settings{Scheduler: "rr"}})
	}
	return ops
}
