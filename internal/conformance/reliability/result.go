package reliability

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Result is what became of a fault in one mode on one kernel.
type Result struct {
	Fault string // as an operator would say it
	Mode  string
	Tried int // how often the fault was done

	// Requests is what was sent meanwhile, connections or datagrams. Failed is
	// how many were not answered, Misdirected how many by an endpoint that was
	// never right while they ran.
	Requests, Failed, Misdirected int

	Repairs []time.Duration // from each fault until all was right again
	Note    string          // why a figure is not zero, or what else was seen

	Kernel string // major and minor version, written by Record

	// Kubernetes is the version of the API server. If it is told, the fault is
	// none but a theme of the packet table, played with objects of that server.
	Kubernetes string `json:",omitempty"`
}

// prefix begins a result in a test's output.
const prefix = "reliability: "

func Record(t testing.TB, r Result) {
	t.Helper()
	r.Kernel = kernel(t)
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(prefix + string(text))
}

// version is a kernel's major and minor version.
var version = regexp.MustCompile(`^\d+\.\d+`)

func kernel(t testing.TB) string {
	t.Helper()
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	return version.FindString(string(release))
}

// line is a line of go test -v that has a result.
var line = regexp.MustCompile(`^ +\S+\.go:\d+: ` + prefix + `(.*)`)

// Read returns the results in the output of go test -v.
func Read(output string) (results []Result, err error) {
	for text := range strings.Lines(output) {
		m := line.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		var r Result
		if err := json.Unmarshal([]byte(m[1]), &r); err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	return results, nil
}
