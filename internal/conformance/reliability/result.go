package reliability

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Result is the result of one fault in one mode on one kernel.
type Result struct {
	Fault string // in an operator's words
	Mode  string
	Tried int // how often the fault was injected

	// Requests is how many connections or datagrams were sent meanwhile. Failed were not answered;
	// Misdirected were answered by an endpoint that was at no time a correct one.
	Requests, Failed, Misdirected int

	Repairs []time.Duration // from each fault until everything was correct again
	Note    string          // why a figure is not zero, or what else was observed

	Kernel string // major and minor version, written by Record

	// Kubernetes is the version of the API server. If it is set, the result is no fault but a theme
	// of the packet table, run with objects of that API server.
	Kubernetes string `json:",omitempty"`
}

// prefix starts a result in the output of a test.
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

// version matches a kernel's major and minor version.
var version = regexp.MustCompile(`^\d+\.\d+`)

func kernel(t testing.TB) string {
	t.Helper()
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	return version.FindString(string(release))
}

// line matches a result in the output of go test -v.
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
