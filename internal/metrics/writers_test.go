package metrics

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestEveryMethodIsCalled checks that the daemon calls every method of Metrics.
// TestExposition checks that calling all of them writes all metrics.
func TestEveryMethodIsCalled(t *testing.T) {
	var methods []string
	for i := range reflect.TypeFor[*Metrics]().NumMethod() {
		methods = append(methods, reflect.TypeFor[*Metrics]().Method(i).Name)
	}
	callers := callers(t, methods)
	for _, method := range methods {
		if len(callers[method]) == 0 {
			t.Errorf("the daemon does not call Metrics.%s", method)
		}
	}
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
			if ok && slices.Contains(methods, s.Sel.Name) && holdsMetrics(s) && !slices.Contains(out[s.Sel.Name], path) {
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

// holdsMetrics reports whether a method is selected from an expression by which
// the daemon holds Metrics: m, a field metrics, or the engine's observer, which
// has the methods of Metrics for events of objects and for repairs.
func holdsMetrics(s *ast.SelectorExpr) bool {
	switch x := s.X.(type) {
	case *ast.Ident:
		return x.Name == "m"
	case *ast.SelectorExpr:
		inherited := slices.Contains([]string{"ServiceSeen", "EndpointSliceSeen", "Repairing"}, s.Sel.Name)
		return x.Sel.Name == "metrics" || x.Sel.Name == "observer" && inherited
	default:
		return false
	}
}
