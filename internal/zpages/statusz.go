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
	Started          time.Time `json:"startTime"`
	UptimeSeconds    int64     `json:"uptimeSeconds"` // set when somebody asks
	GoVersion        string    `json:"goVersion"`
	BinaryVersion    string    `json:"binaryVersion"`
	EmulationVersion string    `json:"emulationVersion,omitempty"` // the minor version of Kubernetes
	Paths            []string  `json:"paths"`                      // what else the server answers, sorted
}

// SetAside is a service port that the kernel does not take.
type SetAside struct {
	ServicePort string `json:"servicePort"`
	Reason      string `json:"reason"`
}

// statusz is the object of /statusz. The last two fields are our own.
type statusz struct {
	head
	Status
	SetAside []SetAside `json:"setAsideServicePorts,omitempty"`
	Total    int        `json:"setAsideServicePortsTotal"`
}

// Statusz answers with how the process is. The service ports that the kernel does
// not take are given when somebody asks: some of them, in order, and how many
// there are.
func Statusz(s Status, setAside func() (some []SetAside, all int)) http.Handler {
	now := func(h head) statusz {
		o := statusz{head: h, Status: s}
		o.UptimeSeconds = int64(time.Since(s.Started).Seconds())
		o.Started = s.Started.UTC().Truncate(time.Second)
		o.SetAside, o.Total = setAside()
		return o
	}
	return page{
		kind:   "Statusz",
		text:   func(w io.Writer) { now(head{}).write(w, s.Started) },
		object: func(h head) any { return now(h) },
	}
}

func (s statusz) write(w io.Writer, started time.Time) {
	up := s.UptimeSeconds
	for _, line := range [][2]string{
		{"Started", started.Format(time.UnixDate)},
		{"Up", fmt.Sprintf("%d hr %02d min %02d sec", up/3600, up/60%60, up%60)},
		{"Go version", s.GoVersion},
		{"Binary version", s.BinaryVersion},
		{"Emulation version", s.EmulationVersion},
		{"Paths", strings.Join(s.Paths, " ")},
		{"Service ports set aside", fmt.Sprint(s.Total)},
	} {
		_, _ = fmt.Fprintf(w, "%s: %s\n", line[0], line[1])
	}
	for _, r := range s.SetAside {
		_, _ = fmt.Fprintf(w, "  %s: %s\n", r.ServicePort, r.Reason)
	}
	if more := s.Total - len(s.SetAside); more > 0 {
		_, _ = fmt.Fprintf(w, "  and %d more\n", more)
	}
}
