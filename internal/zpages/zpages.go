package zpages

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
	"sigs.k8s.io/yaml"
)

// component is what monitoring systems know the proxy by.
const component = "kube-proxy"

// group and its versions are what a page can be asked for as.
const (
	group      = "config.k8s.io"
	version    = "v1beta1"
	deprecated = "v1alpha1" // the same under an older name
)

// page makes an object for each request.
type page struct {
	kind   string // like Statusz
	object func(head) object
}

// object is a page for programs, which can also be written for people.
type object interface{ writeText(io.Writer) }

// head is what every object begins with.
type head struct {
	Kind       string            `json:"kind"`
	APIVersion string            `json:"apiVersion"`
	Metadata   map[string]string `json:"metadata"`
}

// ServeHTTP answers in the form that the client likes best.
func (p page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mediaType, v, ok := p.negotiate(r.Header.Get("Accept"))
	if !ok {
		http.Error(w, fmt.Sprintf("can be had as text/plain, or as application/json or application/yaml with ;g=%s;v=%s;as=%s",
			group, version, p.kind), http.StatusNotAcceptable)
		return
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if v == "" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = fmt.Fprintf(w, "\n%s %s\nWarning: this page is for people, its format may change at any time\n\n", component, strings.ToLower(p.kind))
		p.object(head{}).writeText(w)
		return
	}
	text, err := json.Marshal(p.object(head{p.kind, group + "/" + v, map[string]string{"name": component}}))
	text = append(text, '\n')
	if err == nil && mediaType == "application/yaml" {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if v == deprecated {
		w.Header().Set("Warning", fmt.Sprintf(`299 - "%s %s/%s is deprecated, ask for %s"`, p.kind, group, deprecated, version))
	}
	w.Header().Set("Content-Type", fmt.Sprintf("%s;g=%s;v=%s;as=%s", mediaType, group, v, p.kind))
	_, _ = w.Write(text) // the client has gone
}

// negotiate returns the media type and version that an Accept header asks for.
// Without a version it is text.
func (p page) negotiate(accept string) (mediaType, asked string, ok bool) {
	if strings.TrimSpace(accept) == "" {
		return "text/plain", "", true
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		for _, mediaType := range []string{"application/json", "application/yaml", "text/plain"} {
			main, sub, _ := strings.Cut(mediaType, "/")
			if clause.Type != "*" && clause.Type != main || clause.SubType != "*" && clause.SubType != sub {
				continue
			}
			kind, g, v := clause.Params["as"], clause.Params["g"], clause.Params["v"]
			switch {
			case main == "text" && kind == "" && g == "" && v == "":
				return mediaType, "", true
			case main != "text" && kind == p.kind && g == group && (v == version || v == deprecated):
				return mediaType, v, true
			}
		}
	}
	return "", "", false
}

type flagz struct {
	head
	Flags map[string]string `json:"flags,omitempty"`
}

// Flagz answers with flags and the values they have.
func Flagz(flags map[string]string) http.Handler {
	return page{"Flagz", func(h head) object { return flagz{h, flags} }}
}

func (z flagz) writeText(w io.Writer) {
	for _, name := range slices.Sorted(maps.Keys(z.Flags)) {
		_, _ = fmt.Fprintf(w, "%s=%s\n", name, z.Flags[name])
	}
}

// Status is what /statusz tells of a process.
type Status struct {
	Started          time.Time `json:"startTime"`
	UptimeSeconds    int64     `json:"uptimeSeconds"` // set for each request
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

	local time.Time // the start, in the time zone of who reads the text
}

// Statusz answers with how the process is. The service ports that the kernel does
// not take are asked for by each request: some of them, in order, and how many
// there are.
func Statusz(s Status, setAside func() (some []SetAside, all int)) http.Handler {
	return page{"Statusz", func(h head) object {
		o := statusz{head: h, Status: s, local: s.Started}
		o.UptimeSeconds = int64(time.Since(s.Started).Seconds())
		o.Started = s.Started.UTC().Truncate(time.Second)
		o.SetAside, o.Total = setAside()
		return o
	}}
}

func (s statusz) writeText(w io.Writer) {
	up := s.UptimeSeconds
	for _, line := range [][2]string{
		{"Started", s.local.Format(time.UnixDate)},
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
