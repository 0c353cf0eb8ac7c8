package metrics

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	k8s "k8s.io/component-base/metrics"

	"sluice/internal/config"
	"sluice/internal/proxy"
)

// writes are all methods of Metrics, called once.
var writes = map[string]func(*Metrics){
	"SyncDone": func(m *Metrics) {
		m.SyncDone(proxy.IPv4, Full, time.Second, true)
		m.SyncDone(proxy.IPv4, Partial, time.Second, true)
	},
	"SyncQueued":                    func(m *Metrics) { m.SyncQueued(proxy.IPv4) },
	"NetworkProgramming":            func(m *Metrics) { m.NetworkProgramming(proxy.IPv4, time.Now()) },
	"EndpointSliceSeen":             func(m *Metrics) { m.EndpointSliceSeen() },
	"EndpointSlicesPending":         func(m *Metrics) { m.EndpointSlicesPending(1) },
	"ServiceSeen":                   func(m *Metrics) { m.ServiceSeen() },
	"ServicesPending":               func(m *Metrics) { m.ServicesPending(1) },
	"NoLocalEndpoints":              func(m *Metrics) { m.NoLocalEndpoints(Internal, proxy.IPv4, 1) },
	"Healthz":                       func(m *Metrics) { m.Healthz(200) },
	"Livez":                         func(m *Metrics) { m.Livez(200) },
	"ConntrackReconciled":           func(m *Metrics) { m.ConntrackReconciled(proxy.IPv4, time.Second, 1) },
	"NftablesSyncFailure":           func(m *Metrics) { m.NftablesSyncFailure(proxy.IPv4) },
	"NftablesCleanupFailure":        func(m *Metrics) { m.NftablesCleanupFailure(proxy.IPv4) },
	"IPTablesRules":                 func(m *Metrics) { m.IPTablesRules("nat", proxy.IPv4, IPTablesCount{Owned: 1, Written: 1}) },
	"IPTablesRestoreFailure":        func(m *Metrics) { m.IPTablesRestoreFailure(proxy.IPv4) },
	"IPTablesPartialRestoreFailure": func(m *Metrics) { m.IPTablesPartialRestoreFailure(proxy.IPv4) },
	"Refused":                       func(m *Metrics) { m.Refused(proxy.IPv4, 1) },
}

// TestEveryMetricIsWritten walks all metrics that a mode registers: each must
// be written by a method that the daemon calls.
func TestEveryMetricIsWritten(t *testing.T) {
	for i := range reflect.TypeFor[*Metrics]().NumMethod() {
		if name := reflect.TypeFor[*Metrics]().Method(i).Name; writes[name] == nil {
			t.Errorf("method %s is not in the table of this test", name)
		}
	}
	callers := callers(t, slices.Collect(maps.Keys(writes)))
	for _, mode := range []config.ProxyMode{config.NFTables, config.IPTables} {
		by := map[string][]string{}
		for method, write := range writes {
			if len(callers[method]) == 0 {
				t.Errorf("nobody calls Metrics.%s", method)
				continue
			}
			for _, name := range written(t, mode, write) {
				by[name] = append(by[name], callers[method]...)
			}
		}
		all := newSet()
		for _, r := range all.of(mode) {
			t.Logf("%s: %s is written in %s", mode, r.FQName(), strings.Join(by[r.FQName()], ", "))
			if len(by[r.FQName()]) == 0 {
				t.Errorf("%s: nobody writes %s", mode, r.FQName())
			}
		}
	}
}

// written returns the metrics that a call leaves with another value than zero.
func written(t *testing.T, m config.ProxyMode, write func(*Metrics)) []string {
	t.Helper()
	r := k8s.NewKubeRegistry()
	all, err := New(Settings{Register: r.Register, CustomRegister: r.CustomRegister, Mode: m, Families: proxy.Families[:]})
	if err != nil {
		t.Fatal(err)
	}
	write(all)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range families {
		for _, one := range f.Metric {
			if one.GetGauge().GetValue()+one.GetCounter().GetValue()+float64(one.GetHistogram().GetSampleCount()) > 0 {
				names = append(names, f.GetName())
			}
		}
	}
	return slices.Compact(names)
}

// callers returns, by method, the files of the daemon that use it. Methods of
// our own types that only pass a call on are not counted as their own callers.
func callers(t *testing.T, methods []string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if ok && slices.Contains(methods, s.Sel.Name) && holdsMetrics(s.X) && !slices.Contains(out[s.Sel.Name], path) {
				out[s.Sel.Name] = append(out[s.Sel.Name], path)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// holdsMetrics reports whether an expression is one by which the daemon holds
// Metrics: m, or a field metrics or counter.
func holdsMetrics(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name == "m"
	case *ast.SelectorExpr:
		return x.Sel.Name == "metrics" || x.Sel.Name == "counter"
	default:
		return false
	}
}
