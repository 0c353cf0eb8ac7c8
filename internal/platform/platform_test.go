package platform

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/config"
	"sluice/internal/conformance/lab"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/kernel/sysctl/sysctltest"
)

// fresh is a host of four CPUs as the kernel makes it.
func fresh() map[string]string {
	return map[string]string{
		"/sys/devices/system/cpu/online": "0-2,7",
		conntrackMax:                     "65536", conntrackHash: "16384",
		tcpEstablished: "432000", tcpCloseWait: "60", tcpBeLiberal: "0",
		udpTimeout: "30", udpStream: "120", oomScoreAdj: "0",
	}
}

// asks is what a configuration asks of the host, by field: numbers, times and
// switches.
type asks map[string]any

// nothing asks for nothing but the score that there is.
func nothing(more asks) asks {
	all := asks{
		"conntrack.maxPerCore": int32(0), "conntrack.tcpEstablishedTimeout": time.Duration(0),
		"conntrack.tcpCloseWaitTimeout": time.Duration(0), "oomScoreAdj": int32(0),
	}
	maps.Copy(all, more)
	return all
}

// configuration returns what flags for some fields ask for; those of the default
// are not asked for.
func configuration(t *testing.T, fields asks) *config.Configuration {
	t.Helper()
	in := config.Input{}
	for name, value := range fields {
		v := config.Field(&in.Object, name)
		if v.Kind() == reflect.Pointer {
			v.Set(reflect.New(v.Type().Elem()))
			v = v.Elem()
		}
		if d, ok := value.(time.Duration); ok {
			value = metav1.Duration{Duration: d}
		}
		v.Set(reflect.ValueOf(value))
	}
	c, err := in.Configuration(config.NFTables)
	if err != nil {
		t.Fatal(err)
	}
	return &c
}

func TestApply(t *testing.T) {
	const perCore, least, established = "conntrack.maxPerCore", "conntrack.min", "conntrack.tcpEstablishedTimeout"
	const udp, stream, liberal = "conntrack.udpTimeout", "conntrack.udpStreamTimeout", "conntrack.tcpBeLiberal"
	small := func(n int32) asks { return nothing(asks{perCore: n, least: int32(0)}) }
	tests := []struct {
		name     string
		host     map[string]string // other than fresh
		settings asks
		want     []Change
	}{
		{"nothing", nil, nothing(nil), nil},
		{"defaults", nil, nil, []Change{
			{conntrackMax, 65536, 131072}, {conntrackHash, 16384, 32768}, {tcpCloseWait, 60, 3600}, {oomScoreAdj, 0, -999},
		}},
		{"defaults once more", map[string]string{
			conntrackMax: "131072", conntrackHash: "32768", tcpCloseWait: "3600", oomScoreAdj: "-999",
		}, nil, nil},
		{"the administrator's are larger", map[string]string{
			conntrackMax: "4000000", conntrackHash: "1000000", tcpCloseWait: "7200", oomScoreAdj: "-999",
		}, nil, nil},
		{"scaled by CPUs", nil, small(50000), []Change{{conntrackMax, 65536, 200000}, {conntrackHash, 16384, 50000}}},
		{
			"at least min", nil, nothing(asks{perCore: int32(1000), least: int32(70000)}),
			[]Change{{conntrackMax, 65536, 70000}, {conntrackHash, 16384, 17500}},
		},
		{"capped", nil, small(1 << 20), []Change{{conntrackMax, 65536, 1 << 20}, {conntrackHash, 16384, 1 << 18}}},
		{
			"a min above the cap", nil, nothing(asks{perCore: int32(1 << 20), least: int32(3 << 20)}),
			[]Change{{conntrackMax, 65536, 3 << 20}, {conntrackHash, 16384, 3 << 18}},
		},
		{"min alone", nil, nothing(asks{least: int32(1 << 20)}), nil},
		{"lowered explicitly, the buckets stay", nil, small(1000), []Change{{conntrackMax, 65536, 4000}}},
		{"not lowered by default", map[string]string{conntrackMax: "200000", conntrackHash: "50000"}, nothing(asks{perCore: int32(32768)}), nil},
		{"the cap lowers nothing", map[string]string{conntrackMax: "2097152", conntrackHash: "524288"}, small(1 << 20), nil},
		{"buckets alone are too few", map[string]string{conntrackMax: "200000"}, small(50000), []Change{{conntrackHash, 16384, 50000}}},
		{
			"CPUs not known",
			map[string]string{"/sys/devices/system/cpu/online": "?"},
			small(100000),
			[]Change{{conntrackMax, 65536, 100000 * runtime.NumCPU()}, {conntrackHash, 16384, 25000 * runtime.NumCPU()}},
		},
		{"time-out lowered explicitly", nil, nothing(asks{established: time.Hour}), []Change{{tcpEstablished, 432000, 3600}}},
		{"time-out not lowered by default", nil, nothing(asks{established: 24 * time.Hour}), nil},
		{"time-out raised", nil, nothing(asks{established: 200 * time.Hour}), []Change{{tcpEstablished, 432000, 720000}}},
		{"time-out raised by default", map[string]string{tcpEstablished: "60"}, nothing(asks{established: 24 * time.Hour}), []Change{{tcpEstablished, 60, 86400}}},
		{
			"half a second is one",
			map[string]string{udpTimeout: "0"},
			nothing(asks{udp: 500 * time.Millisecond}),
			[]Change{{udpTimeout, 0, 1}},
		},
		{
			"all the rest", nil, nothing(asks{liberal: true, udp: time.Minute, stream: time.Minute}),
			[]Change{{tcpBeLiberal, 0, 1}, {udpTimeout, 30, 60}, {udpStream, 120, 60}},
		},
		{"liberal already", map[string]string{tcpBeLiberal: "1"}, nothing(asks{liberal: true}), nil},
		{"liberal stays", map[string]string{tcpBeLiberal: "1"}, nothing(nil), nil},
		{"OOM score lowered and raised", map[string]string{oomScoreAdj: "-999"}, nothing(asks{"oomScoreAdj": int32(-500)}), []Change{{oomScoreAdj, -999, -500}}},
		{"OOM score of zero", map[string]string{oomScoreAdj: "300"}, nothing(nil), []Change{{oomScoreAdj, 300, 0}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			values := fresh()
			for name, v := range tt.host {
				values[name] = v
			}
			k := sysctltest.NewFake(values)
			got := Apply(t.Context(), k, configuration(t, tt.settings))
			if diff := cmp.Diff(Report{Changes: tt.want}, got); diff != "" {
				t.Errorf("report mismatch (-want +got):\n%s", diff)
			}
			if len(k.Writes()) != len(tt.want) {
				t.Errorf("writes %v; want those of %v", k.Writes(), tt.want)
			}
			for _, c := range tt.want {
				if v, err := sysctl.ReadInt(k, c.Name); v != c.New || err != nil {
					t.Errorf("%s is %d, error %v; want %d", c.Name, v, err, c.New)
				}
			}
		})
	}
}

// TestSwitches checks the settings that no configuration asks for: nothing is written if they
// are enabled already.
func TestSwitches(t *testing.T) {
	for name, enable := range map[string]func(*Report, context.Context, sysctl.Interface){
		flowAccounting: (*Report).CountBytes, tcpBeLiberal: (*Report).BeLiberal,
	} {
		for was, want := range map[string][]Change{"0": {{name, 0, 1}}, "1": nil} {
			var r Report
			enable(&r, t.Context(), sysctltest.NewFake(map[string]string{name: was}))
			if diff := cmp.Diff(Report{Changes: want}, r); diff != "" {
				t.Errorf("%s was %s: report mismatch (-want +got):\n%s", name, was, diff)
			}
		}
	}
}

// TestProblems checks that a setting which cannot be written does not prevent others
// from being written.
func TestProblems(t *testing.T) {
	broken := errors.New("out of order")
	tests := []struct {
		name  string
		spoil func(map[string]string)
		err   error // of writing everything
		want  []string
	}{
		{"read-only file system", nil, syscall.EROFS, []string{"cannot set " + conntrackMax + " to 131072: it is read-only here", "cannot set " + tcpCloseWait + " to 3600: it is read-only", "cannot set " + oomScoreAdj + " to -999: it is read-only"}},
		{"no permission", nil, fs.ErrPermission, []string{"cannot set " + conntrackMax + " to 131072: no permission", tcpCloseWait, oomScoreAdj}},
		{"something else", nil, broken, []string{"out of order", "out of order", "out of order"}},
		{"no connection tracking", func(v map[string]string) {
			delete(v, conntrackMax)
			delete(v, conntrackHash)
		}, nil, []string{"is nf_conntrack loaded?"}},
		{"not a number", func(v map[string]string) { v[tcpCloseWait] = "soon" }, nil, []string{`"soon"`}},
		{"missing bucket count", func(v map[string]string) { delete(v, conntrackHash) }, nil, []string{"cannot set " + conntrackHash + " to 32768"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			values := fresh()
			if tt.spoil != nil {
				tt.spoil(values)
			}
			k := sysctltest.NewFake(values)
			for name := range values {
				if tt.err != nil {
					k.Refuse(name, tt.err)
				}
			}
			r := Apply(t.Context(), k, configuration(t, nil))
			if len(r.Problems) != len(tt.want) {
				t.Fatalf("problems %v; want %d", r.Problems, len(tt.want))
			}
			for i, p := range r.Problems {
				if !strings.Contains(p.String(), tt.want[i]) {
					t.Errorf("problem %q; want %q in it", p, tt.want[i])
				}
			}
			if n := len(k.Writes()); n != len(r.Changes) || tt.err != nil && n > 0 {
				t.Errorf("wrote %v, reported %v", k.Writes(), r.Changes)
			}
			if tt.err == nil && len(r.Changes) == 0 {
				t.Errorf("one problem prevented all changes")
			}
		})
	}
}

// TestCancelled checks that nothing is written.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	k := sysctltest.NewFake(fresh())
	if r := Apply(ctx, k, configuration(t, nil)); len(r.Changes)+len(r.Problems)+len(k.Writes()) > 0 {
		t.Errorf("report %v, writes %v; want nothing", r, k.Writes())
	}
}

func TestCPUs(t *testing.T) {
	own := runtime.NumCPU()
	tests := map[string]int{"0": 1, "0-3": 4, "0-2,7": 4, "1,3,5-6": 4, "": own, "x": own, "3-1": own, "0-": own}
	for list, want := range tests {
		k := sysctltest.NewFake(map[string]string{"/sys/devices/system/cpu/online": list})
		if got := cpus(k); got != want {
			t.Errorf("%q are %d CPUs; want %d", list, got, want)
		}
	}
	if got := cpus(sysctltest.NewFake(nil)); got != own {
		t.Errorf("without a list there are %d CPUs; want %d", got, own)
	}
}

// TestKernel changes the timeouts of a network namespace, in which the size of the
// table cannot be changed.
func TestKernel(t *testing.T) {
	lab.Namespace(t)
	k := sysctl.Kernel{}
	udp, err := sysctl.ReadInt(k, udpTimeout)
	if err != nil {
		t.Fatal(err)
	}
	limit, err := sysctl.ReadInt(k, conntrackMax)
	if err != nil {
		t.Fatal(err)
	}
	hash, err := sysctl.ReadInt(k, conntrackHash)
	if err != nil {
		t.Fatal(err)
	}
	score, err := sysctl.ReadInt(k, oomScoreAdj)
	if err != nil {
		t.Fatal(err)
	}
	fields := nothing(asks{
		"conntrack.maxPerCore":   int32(1),
		"conntrack.min":          int32(limit + 4*hash), // more than there is room for
		"conntrack.tcpBeLiberal": true,
		"conntrack.udpTimeout":   time.Duration(udp+5) * time.Second,
		"oomScoreAdj":            int32(score),
	})
	r := Apply(t.Context(), k, configuration(t, fields))
	want := []Change{{tcpBeLiberal, 0, 1}, {udpTimeout, udp, udp + 5}}
	if diff := cmp.Diff(want, r.Changes); diff != "" {
		t.Errorf("changes mismatch (-want +got):\n%s", diff)
	}
	if len(r.Problems) != 1 || r.Problems[0].Name != conntrackMax || !strings.Contains(r.Problems[0].String(), "no permission") {
		t.Errorf("problems %v; want that %s may not be written", r.Problems, conntrackMax)
	}
	if now, err := sysctl.ReadInt(k, udpTimeout); now != udp+5 || err != nil {
		t.Errorf("%s is %d, error %v; want %d", udpTimeout, now, err, udp+5)
	}
	if now, err := sysctl.ReadInt(k, conntrackHash); now != hash || err != nil {
		t.Errorf("%s is %d, error %v; want %d, since the size could not be changed", conntrackHash, now, err, hash)
	}
	fields["conntrack.maxPerCore"] = int32(0)
	again := Apply(t.Context(), k, configuration(t, fields))
	if len(again.Changes)+len(again.Problems) > 0 {
		t.Errorf("a second time: %v", again)
	}
}
