package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// root is the module's directory, relative to this package.
const root = "../.."

// source is one parsed file.
type source struct {
	path string // relative to root
	pkg  string // directory of the package, relative to root
	test bool
	file *ast.File
}

// imports reports whether the file imports a package.
func (f source) imports(path string) bool {
	return slices.ContainsFunc(f.file.Imports, func(s *ast.ImportSpec) bool { return s.Path.Value == strconv.Quote(path) })
}

// parse parses every Go file of the module. Nested modules are skipped.
func parse(t *testing.T) (*token.FileSet, []source) {
	t.Helper()
	fset := token.NewFileSet()
	var files []source
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() {
			_, err := os.Stat(filepath.Join(path, "go.mod"))
			if rel != "." && (err == nil || strings.HasPrefix(d.Name(), ".")) || d.Name() == "testdata" || rel == "bin" {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		files = append(files, source{rel, filepath.Dir(rel), strings.HasSuffix(path, "_test.go"), f})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return fset, files
}

// rule is one row of the import table in ARCHITECTURE.md. Packages are matched by prefix; "" in
// ours means none.
type rule struct {
	pkg     string
	ours    []string // packages of this module that it may import; nil means all
	outside []string // other packages that it may import; nil means all
}

// overRules are the imports of the modes that build on the rules of nftables.
var overRules = []string{
	"internal/proxy", "internal/kernel/", "internal/dataplane/differ", "internal/dataplane/mode",
	"internal/dataplane/localnet", "internal/dataplane/nftables",
}

// table is ordered: the first row whose package is a prefix applies.
var table = []rule{
	{"internal/proxy/proxytest", []string{"internal/proxy"}, []string{}},
	{"internal/proxy", []string{}, []string{}},
	{"internal/apiobject", []string{"internal/proxy"}, []string{"k8s.io/api/", "k8s.io/apimachinery/", "k8s.io/utils/"}},
	{"internal/resolve", []string{"internal/proxy", "internal/apiobject"}, []string{"k8s.io/api/", "k8s.io/apimachinery/", "k8s.io/utils/ptr"}},
	{"internal/apiclient", []string{}, []string{"k8s.io/api/", "k8s.io/apimachinery/", "k8s.io/client-go/rest"}},
	{"internal/source/informer", []string{"internal/source", "internal/apiclient"}, []string{"k8s.io/"}},
	{"internal/source/manifest", []string{"internal/source", "internal/apiobject"}, []string{"k8s.io/api/", "k8s.io/apimachinery/", "k8s.io/klog/", "sigs.k8s.io/yaml", "sigs.k8s.io/json", "go.yaml.in/yaml/v3", "github.com/fsnotify/fsnotify", "github.com/go-logr/"}},
	{"internal/source", []string{}, []string{"k8s.io/api/", "k8s.io/apimachinery/"}},
	{"internal/kernel/", []string{"internal/kernel/"}, []string{"github.com/google/nftables/expr", "github.com/vishvananda/", "github.com/Microsoft/hnslib/", "golang.org/x/sys/"}},
	{"internal/dataplane/localnet/localnettest", []string{"internal/dataplane/localnet", "internal/kernel/sysctl", "internal/proxy", "internal/proxy/proxytest"}, []string{}},
	{"internal/dataplane/localnet", []string{"internal/kernel/sysctl"}, []string{"k8s.io/klog/"}},
	{"internal/dataplane/differ", []string{"internal/proxy"}, []string{}},
	{"internal/dataplane/mode", []string{"internal/proxy", "internal/config", "internal/kernel/ct", "internal/dataplane/localnet"}, []string{}},
	{"internal/dataplane/nftables", []string{"internal/proxy", "internal/kernel/", "internal/dataplane/differ", "internal/dataplane/mode", "internal/dataplane/localnet"}, []string{"k8s.io/klog/", "github.com/google/nftables/expr", "golang.org/x/sys/"}},
	{"internal/dataplane/iptables", []string{"internal/proxy", "internal/kernel/", "internal/dataplane/differ", "internal/dataplane/mode", "internal/dataplane/localnet"}, []string{"k8s.io/klog/"}},
	{"internal/dataplane/ipvs", overRules, []string{"k8s.io/klog/", "github.com/vishvananda/", "golang.org/x/sys/"}},
	{"internal/balance", []string{"internal/proxy"}, []string{}},
	{"internal/nodeportrelay", []string{"internal/proxy", "internal/balance"}, []string{"k8s.io/klog/"}},
	{"internal/dataplane/userspace", append([]string{"internal/balance"}, overRules...), []string{"k8s.io/klog/", "github.com/vishvananda/", "golang.org/x/sys/"}},
	{"internal/dataplane/ebpf", overRules, []string{"k8s.io/klog/", "github.com/cilium/ebpf", "github.com/cilium/ebpf/", "github.com/vishvananda/", "golang.org/x/sys/"}},
	{"internal/dataplane/kernelspace", []string{"internal/proxy", "internal/kernel/hns", "internal/dataplane/differ", "internal/dataplane/mode"}, []string{}},
	{"internal/dataplane", []string{"internal/proxy", "internal/config", "internal/dataplane/"}, []string{}},
	{"internal/config", []string{}, []string{"k8s.io/apimachinery/", "k8s.io/component-base/config/v1alpha1", "k8s.io/component-base/featuregate", "k8s.io/component-base/logs/api/v1", "k8s.io/kube-proxy/config/v1alpha1", "k8s.io/utils/net", "github.com/go-logr/", "sigs.k8s.io/json", "sigs.k8s.io/yaml"}},
	{"internal/runner", []string{}, []string{"k8s.io/klog/", "github.com/go-logr/"}},
	{"internal/engine", []string{"internal/proxy", "internal/resolve", "internal/source", "internal/runner"}, []string{"k8s.io/api/", "k8s.io/klog/", "github.com/go-logr/", "golang.org/x/time/rate"}},
	{"internal/metrics", []string{"internal/proxy"}, []string{"k8s.io/api/", "k8s.io/component-base/"}},
	{"internal/health", []string{"internal/proxy"}, []string{"k8s.io/api/", "k8s.io/component-base/", "k8s.io/klog/", "github.com/go-logr/"}},
	{"internal/access", []string{"internal/apiclient", "internal/statusapi"}, []string{"k8s.io/api/", "k8s.io/apimachinery/", "k8s.io/client-go/rest", "k8s.io/klog/", "golang.org/x/time/rate"}},
	{"internal/zpages", []string{}, []string{"github.com/munnerz/goautoneg", "sigs.k8s.io/yaml"}},
	{"internal/statusapi", []string{}, []string{}},
	{"internal/similar", []string{}, []string{}},
	{"internal/status/page", []string{}, []string{}},
	{"internal/status", []string{"internal/proxy", "internal/resolve", "internal/engine", "internal/explain", "internal/statusapi", "internal/traffic"}, []string{"k8s.io/apimachinery/pkg/types", "k8s.io/klog/", "github.com/go-logr/", "golang.org/x/sys/"}},
	{"internal/explain", []string{"internal/proxy", "internal/resolve", "internal/engine", "internal/similar", "internal/statusapi"}, []string{"k8s.io/apimachinery/pkg/types"}},
	{"internal/cli", []string{"internal/similar", "internal/statusapi"}, []string{"github.com/spf13/cobra", "github.com/spf13/pflag", "golang.org/x/term", "k8s.io/apimachinery/pkg/util/duration", "sigs.k8s.io/yaml"}},
	{"internal/traffic", []string{"internal/proxy", "internal/kernel/ct"}, []string{"k8s.io/klog/"}},
	{"internal/bugreport", []string{"internal/cli", "internal/statusapi"}, []string{"golang.org/x/sys/"}},
	{"internal/conntrack", []string{"internal/proxy", "internal/runner", "internal/kernel/ct"}, []string{"k8s.io/klog/"}},
	{"internal/platform", []string{"internal/config", "internal/kernel/sysctl"}, []string{"k8s.io/utils/cpuset"}},
	{"internal/conformance/traffic", []string{"internal/proxy"}, []string{"github.com/vishvananda/netns", "golang.org/x/sys/"}},
	{"internal/conformance/lab", []string{"internal/proxy", "internal/conformance/traffic"}, []string{"github.com/vishvananda/", "golang.org/x/sys/"}},
	{"internal/conformance/subprocess", []string{}, []string{}},
	{"internal/conformance/ruleset", []string{"internal/conformance/lab"}, []string{}},
	{"internal/conformance/churn", []string{"internal/conformance", "internal/conformance/lab", "internal/conformance/reliability", "internal/conformance/subprocess", "internal/conformance/traffic", "internal/proxy", "internal/statusapi"}, nil},
	{"internal/conformance", []string{"internal/proxy", "internal/proxy/proxytest", "internal/resolve", "internal/conformance/lab", "internal/conformance/traffic", "internal/kernel/netfilter"}, nil},
	{"internal/app", nil, nil},
	{"internal/archtest/hops", []string{"internal/engine", "internal/proxy", "internal/resolve", "internal/source"}, []string{"k8s.io/api/", "k8s.io/apimachinery/"}},
	{"internal/archtest", []string{}, []string{}},
	{"internal/kubectl", []string{"internal/apiclient", "internal/cli", "internal/status/page", "internal/statusapi"}, []string{"k8s.io/api/", "k8s.io/apimachinery/", "k8s.io/client-go/", "k8s.io/klog/", "k8s.io/streaming/", "github.com/go-logr/", "github.com/spf13/cobra", "github.com/spf13/pflag", "golang.org/x/sync/errgroup"}},
	{"cmd/kubectl-sluice", []string{"internal/cli", "internal/kubectl"}, []string{"k8s.io/client-go/plugin/pkg/client/auth"}},
	{"cmd/", []string{"internal/app", "internal/cli"}, []string{"k8s.io/component-base/"}},
	{"test/", nil, nil},
}

// TestImports checks every package against the import table.
func TestImports(t *testing.T) {
	fset, files := parse(t)
	for _, f := range files {
		if f.test {
			continue // tests may combine any packages
		}
		i := slices.IndexFunc(table, func(r rule) bool { return strings.HasPrefix(f.pkg+"/", r.pkg) })
		if i < 0 {
			t.Errorf("%s: package %s is not in the import table", f.path, f.pkg)
			continue
		}
		for _, spec := range f.file.Imports {
			path, _ := strconv.Unquote(spec.Path.Value)
			if isFake(path) && !isFake(f.pkg) && !strings.HasPrefix(f.pkg, "test/") { // where all is for tests
				t.Errorf("%v: %s is for tests, %s is none", fset.Position(spec.Pos()), path, f.path)
			}
			if !allowed(table[i], f.pkg, path) {
				t.Errorf("%v: %s may not import %s", fset.Position(spec.Pos()), f.pkg, path)
			}
		}
	}
}

// isFake reports whether a package is a fake of a kernel interface.
func isFake(path string) bool {
	return strings.Contains(path, "internal/kernel/") && strings.HasSuffix(path, "test")
}

func allowed(r rule, pkg, path string) bool {
	list := r.outside
	switch {
	case path == "k8s.io/kubernetes" || strings.HasPrefix(path, "k8s.io/kubernetes/"):
		return false
	case strings.HasPrefix(path, "sluice/"):
		path = strings.TrimPrefix(path, "sluice/")
		list = r.ours
		if list != nil && path == pkg {
			return false
		}
	case !strings.Contains(strings.Split(path, "/")[0], "."):
		return true // standard library
	}
	if list == nil {
		return true
	}
	return slices.ContainsFunc(list, func(p string) bool { return path == p || strings.HasSuffix(p, "/") && strings.HasPrefix(path, p) })
}

// TestDaemonDependencies keeps the dependencies of kubectl sluice out of the daemon, where they
// would add size and attack surface on every node.
func TestDaemonDependencies(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./cmd/sluice")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range strings.Lines(string(out)) {
		for _, no := range []string{
			"github.com/gorilla/", "github.com/moby/", "k8s.io/streaming/", "k8s.io/client-go/tools/remotecommand",
			"k8s.io/client-go/plugin/pkg/client/auth/oidc", "sluice/internal/kubectl",
		} {
			if strings.HasPrefix(pkg, no) {
				t.Errorf("cmd/sluice needs %s", strings.TrimSpace(pkg))
			}
		}
	}
}

// TestPackageDocs requires one doc.go per package with a useful comment.
func TestPackageDocs(t *testing.T) {
	_, files := parse(t)
	docs := map[string]string{}
	for _, f := range files {
		if f.test {
			continue
		}
		if _, ok := docs[f.pkg]; !ok {
			docs[f.pkg] = ""
		}
		if f.file.Doc == nil {
			continue
		}
		if base := filepath.Base(f.path); base != "doc.go" && base != "main.go" {
			t.Errorf("%s: the package comment belongs in doc.go", f.path)
		}
		docs[f.pkg] = f.file.Doc.Text()
	}
	for pkg, doc := range docs {
		if len(doc) < 80 {
			t.Errorf("package %s does not say what it is for", pkg)
		}
	}
}

// TestHouseRules checks the rules of the house style that a compiler does not.
func TestHouseRules(t *testing.T) {
	fset, files := parse(t)
	for _, f := range files {
		ast.Inspect(f.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil && n.Name.Name == "init" {
					t.Errorf("%v: no init()", fset.Position(n.Pos()))
				}
				if lines := fset.Position(n.End()).Line - fset.Position(n.Pos()).Line; lines > 80 && !f.test {
					t.Errorf("%v: %s has %d lines; split it", fset.Position(n.Pos()), n.Name.Name, lines)
				}
			case *ast.SelectorExpr:
				checkSelector(t, fset, f, n)
			}
			return true
		})
		if lines := fset.Position(f.file.End()).Line; lines > 600 && !f.test {
			t.Errorf("%s has %d lines; is it one idea?", f.path, lines)
		}
		for _, c := range f.file.Comments {
			if text := c.Text(); strings.Contains(text, "TO"+"DO") || strings.Contains(text, "FIX"+"ME") {
				t.Errorf("%v: open ends go to an issue", fset.Position(c.Pos()))
			}
		}
	}
}

// klogAllowed are the identifiers of klog that code may use: contextual logging only.
var klogAllowed = []string{
	"FromContext", "NewContext", "LoggerWithName", "LoggerWithValues", "Logger", "KObj", "KRef",
	"NewKlogr", "Background", "FlushAndExit", "ExitFlushTimeout",
}

// policyNames are the fields and methods that [proxy.Policy] is computed from. A dataplane that
// reads them would decide policy a second time.
var policyNames = []string{
	"Internal", "External", "UsableSomewhere", "AllowFrom",
	"MasqueradeAll", "LocalhostNodePorts", "NodePorts", "TakesNodePorts", "Detects",
}

// TestDataplanesDoNotDecidePolicy checks that dataplanes do not read the inputs of policy: they render
// ServicePort.Policy and Node.NodePortAddresses.
func TestDataplanesDoNotDecidePolicy(t *testing.T) {
	fset, files := parse(t)
	for _, f := range files {
		if f.test || !strings.HasPrefix(f.pkg, "internal/dataplane/") {
			continue
		}
		ast.Inspect(f.file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains(policyNames, sel.Sel.Name) {
				t.Errorf("%v: %s is policy, which is spent before a dataplane: read ServicePort.Policy", fset.Position(sel.Pos()), sel.Sel.Name)
			}
			return true
		})
	}
}

func checkSelector(t *testing.T, fset *token.FileSet, f source, n *ast.SelectorExpr) {
	t.Helper()
	x, ok := n.X.(*ast.Ident)
	if !ok || x.Obj != nil {
		return
	}
	switch {
	case x.Name == "klog" && !f.test && !slices.Contains(klogAllowed, n.Sel.Name):
		t.Errorf("%v: klog.%s is not contextual logging", fset.Position(n.Pos()), n.Sel.Name)
	case x.Name == "time" && n.Sel.Name == "Sleep" && f.test && !f.imports("testing/synctest"):
		t.Errorf("%v: no sleeps in tests; poll with a deadline or use synctest", fset.Position(n.Pos()))
	case x.Name == "time" && n.Sel.Name == "Now" && !f.test && (f.pkg == "internal/resolve" || f.pkg == "internal/proxy"):
		t.Errorf("%v: %s must not know what time it is", fset.Position(n.Pos()), f.pkg)
	case x.Name == "os" && n.Sel.Name == "Exit" && !strings.HasPrefix(f.pkg, "cmd/") && !strings.HasPrefix(f.pkg, "test/"):
		t.Errorf("%v: only main may exit", fset.Position(n.Pos()))
	}
}
