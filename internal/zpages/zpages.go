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

// component is the name of the component on the pages. It is kube-proxy's, so that
// monitoring systems recognize it.
const component = "kube-proxy"

// The group of the objects, and its versions.
const (
	group      = "config.k8s.io"
	version    = "v1beta1"
	deprecated = "v1alpha1" // the same fields
)

// page is a handler that builds an object for each request.
type page struct {
	kind   string // Statusz or Flagz
	object func(head) object
}

// object can be encoded as JSON, and written as plain text.
type object interface{ writeText(io.Writer) }

// head has the fields that every object begins with.
type head struct {
	Kind       string            `json:"kind"`
	APIVersion string            `json:"apiVersion"`
	Metadata   map[string]string `json:"metadata"`
}

// ServeHTTP responds in the format that the client prefers.
func (p page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mediaType, v, ok := p.negotiate(r.Header.Get("Accept"))
	if !ok {
		http.Error(w, fmt.Sprintf("not acceptable: use text/plain, or application/json or application/yaml with ;g=%s;v=%s;as=%s",
			group, version, p.kind), http.StatusNotAcceptable)
		return
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if v == "" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = fmt.Fprintf(w, "\n%s %s\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n\n", component, strings.ToLower(p.kind))
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
		w.Header().Set("Warning", fmt.Sprintf(`299 - "%s %s/%s is deprecated, use %s"`, p.kind, group, deprecated, version))
	}
	w.Header().Set("Content-Type", fmt.Sprintf("%s;g=%s;v=%s;as=%s", mediaType, group, v, p.kind))
	_, _ = w.Write(text) // fails if the client disconnected
}

// negotiate returns the media type and, unless it is plain text, the version that an
// Accept header prefers. It returns false if it accepts none.
func (p page) negotiate(accept string) (mediaType, objectVersion string, ok bool) {
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

// Flagz returns a handler for /flagz: the names of flags and their values.
func Flagz(flags map[string]string) http.Handler {
	return page{"Flagz", func(h head) object { return flagz{h, flags} }}
}

func (z flagz) writeText(w io.Writer) {
	for _, name := range slices.Sorted(maps.Keys(z.Flags)) {
		_, _ = fmt.Fprintf(w, "%s=%s\n", name, z.Flags[name])
	}
}

// Status is what /statusz reports about the process.
type Status struct {
	Started          time.Time `json:"startTime"`
	UptimeSeconds    int64     `json:"uptimeSeconds"` // computed for each request
	GoVersion        string    `json:"goVersion"`
	BinaryVersion    string    `json:"binaryVersion"`
	EmulationVersion string    `json:"emulationVersion,omitempty"` // the minor version of Kubernetes
	Paths            []string  `json:"paths"`                      // the other paths of the server, sorted
}

// SetAside is a service port that the kernel refuses.
type SetAside struct {
	ServicePort string `json:"servicePort"`
	Reason      string `json:"reason"`
}

// statusz is the object of /statusz. The fields of refused service ports do not exist in
// kube-proxy.
type statusz struct {
	head
	Status
	SetAside []SetAside `json:"setAsideServicePorts,omitempty"`
	Total    int        `json:"setAsideServicePortsTotal"`

	local time.Time // the start, in the local time zone, for the text
}

// Statusz returns a handler for /statusz. It calls setAside for each request, which
// returns the first service ports that the kernel refuses, sorted, and how many there
// are.
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
		{"Refused service ports", fmt.Sprint(s.Total)},
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
