package zpages

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Status is what /statusz tells of a process.
type Status struct {
	Started          time.Time
	GoVersion        string
	BinaryVersion    string
	EmulationVersion string   // the minor version of Kubernetes
	Paths            []string // what else the server answers, sorted

	// SetAside returns the service ports that the kernel does not take: some of
	// them, in order, and how many there are.
	SetAside func() (some []SetAside, all int)
}

// SetAside is a service port that the kernel does not take.
type SetAside struct {
	ServicePort string `json:"servicePort"`
	Reason      string `json:"reason"`
}

// statusz is the object of /statusz. The last two fields are our own.
type statusz struct {
	head
	StartTime        time.Time `json:"startTime"`
	UptimeSeconds    int64     `json:"uptimeSeconds"`
	GoVersion        string    `json:"goVersion"`
	BinaryVersion    string    `json:"binaryVersion"`
	EmulationVersion string    `json:"emulationVersion,omitempty"`
	Paths            []string  `json:"paths"`

	SetAside      []SetAside `json:"setAsideServicePorts,omitempty"`
	SetAsideTotal int        `json:"setAsideServicePortsTotal"`
}

// Statusz answers with how the process is.
func Statusz(s Status) http.Handler {
	return page{
		kind: "Statusz",
		text: s.write,
		object: func(h head) any {
			some, all := s.SetAside()
			return statusz{
				head: h, StartTime: s.Started.UTC().Truncate(time.Second), UptimeSeconds: int64(time.Since(s.Started).Seconds()),
				GoVersion: s.GoVersion, BinaryVersion: s.BinaryVersion, EmulationVersion: s.EmulationVersion, Paths: s.Paths,
				SetAside: some, SetAsideTotal: all,
			}
		},
	}
}

func (s Status) write(w io.Writer) {
	up := int64(time.Since(s.Started).Seconds())
	some, all := s.SetAside()
	for _, line := range []struct{ what, value string }{
		{"Started", s.Started.Format(time.UnixDate)},
		{"Up", fmt.Sprintf("%d hr %02d min %02d sec", up/3600, up/60%60, up%60)},
		{"Go version", s.GoVersion},
		{"Binary version", s.BinaryVersion},
		{"Emulation version", s.EmulationVersion},
		{"Paths", strings.Join(s.Paths, " ")},
		{"Service ports set aside", fmt.Sprint(all)},
	} {
		_, _ = fmt.Fprintf(w, "%s: %s\n", line.what, line.value)
	}
	for _, r := range some {
		_, _ = fmt.Fprintf(w, "  %s: %s\n", r.ServicePort, r.Reason)
	}
	if more := all - len(some); more > 0 {
		_, _ = fmt.Fprintf(w, "  and %d more\n", more)
	}
}
