package ebpf_test

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	cilium "github.com/cilium/ebpf"

	"sluice/internal/conformance"
	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/ebpf"
	"sluice/internal/proxy"
)

// mutants are faults, made by changing the maps, with the groups of the packet table that
// must detect them.
var mutants = map[string]struct {
	groups string
	mutate func(*ebpf.Dataplane) error
}{
	"masquerading is ignored": {"table-cluster-cidr-IPv4-TCP", rewrite("services", func(k, v []byte) bool {
		v[12], v[13], v[14] = v[12]|1, v[13]|1, v[14]|1
		binary.NativeEndian.PutUint32(v[16:], ebpf.Checksum(k, v[:16]))
		return true
	})},
	"every pod is a local pod": {"table-none-IPv4-TCP|mx-nodetect", rewrite("spaces", func(k, v []byte) bool {
		binary.NativeEndian.PutUint32(v[32:], uint32(proxy.OurPod))
		binary.NativeEndian.PutUint32(v[36:], ebpf.Checksum(k, v[:36]))
		return true
	})},
	"a client does not recognise itself as the endpoint": {"hairpin", rewrite("spaces", func(k, v []byte) bool {
		v[31] = 0xff // the last byte of its source address
		binary.NativeEndian.PutUint32(v[36:], ebpf.Checksum(k, v[:36]))
		return true
	})},
	"NodePorts take precedence over other frontends of the node's address": {"np-exact|np-shared|conflict", rewrite("services", func(k, _ []byte) bool {
		return string(k[12:16]) != "\xc0\xa8\x00\x02" // 192.168.0.2
	})},
	"NodePorts are on all addresses":           {"np", rewrite("node_addrs", func(_, v []byte) bool { v[0] |= 1; return true })},
	"addresses of the node are not recognised": {"vip", rewrite("node_addrs", func(_, v []byte) bool { return v[0]&1 != 0 })},
	"the cache is never invalidated":           {"table-cluster-cidr", (*ebpf.Dataplane).FreezeGeneration},
}

// rewrite returns a fault that changes the values of a map, and deletes entries for which
// keep returns false.
func rewrite(name string, keep func(k, v []byte) bool) func(*ebpf.Dataplane) error {
	return func(d *ebpf.Dataplane) error {
		return d.WriteMaps(func() error { return rewriteMap(d.Map(name), keep) })
	}
}

func rewriteMap(m *cilium.Map, keep func(k, v []byte) bool) error {
	var key []byte
	for it, all := m.Iterate(), map[string][]byte{}; ; {
		var value []byte
		if it.Next(&key, &value) {
			all[string(key)] = value
			continue
		}
		for k, v := range all {
			was := string(v)
			var err error
			if keep([]byte(k), v) {
				if string(v) != was {
					err = m.Update([]byte(k), v, cilium.UpdateExist)
				}
			} else {
				err = m.Delete([]byte(k))
			}
			if err != nil && !errors.Is(err, cilium.ErrKeyNotExist) {
				return err
			}
		}
		return it.Err()
	}
}

// mutatedDataplane is a dataplane with a fault.
type mutatedDataplane struct {
	*ebpf.Dataplane
	mutate func(*ebpf.Dataplane) error
}

func (m *mutatedDataplane) Run(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- m.Dataplane.Run(ctx) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-time.After(time.Millisecond):
			if err := m.mutate(m.Dataplane); err != nil {
				return err
			}
		}
	}
}

// mutant is the environment variable that selects a mutant.
const mutant = "EBPF_MUTANT"

// TestMutants checks that the packet table detects every mutant.
func TestMutants(t *testing.T) {
	lab.RequireRoot(t)
	if os.Getenv(mutant) != "" {
		return
	}
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestConformance$/("+m.groups+")")
			cmd.Env = append(os.Environ(), mutant+"="+name, conformance.ShareVariable+"=")
			out, err := cmd.CombinedOutput()
			n := strings.Count(string(out), "--- FAIL: TestConformance/")
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || n == 0 {
				t.Errorf("no case fails: %v\n%s", err, out)
			}
			t.Logf("%d failures", n)
		})
	}
}
