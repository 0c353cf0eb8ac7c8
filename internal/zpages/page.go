package zpages

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

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

// page is a page in both forms.
type page struct {
	kind   string          // like Statusz
	text   func(io.Writer) // what follows the page's title
	object func(head) any
}

// head is what every object begins with.
type head struct {
	Kind       string   `json:"kind"`
	APIVersion string   `json:"apiVersion"`
	Metadata   metadata `json:"metadata"`
}

type metadata struct {
	Name string `json:"name"`
}

// form is how a page is asked for. Without a version it is text.
type form struct{ mediaType, version string }

// ServeHTTP answers in the form that the client likes best.
func (p page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, ok := p.negotiate(r.Header.Get("Accept"))
	if !ok {
		http.Error(w, fmt.Sprintf("can be had as text/plain, or as application/json or application/yaml with ;g=%s;v=%s;as=%s",
			group, version, p.kind), http.StatusNotAcceptable)
		return
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if f.version == "" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = fmt.Fprintf(w, "\n%s %s\nWarning: this page is for people, its format may change at any time\n\n", component, strings.ToLower(p.kind))
		p.text(w)
		return
	}
	text, err := p.encode(f)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if f.version == deprecated {
		w.Header().Set("Warning", fmt.Sprintf(`299 - "%s %s/%s is deprecated, ask for %s"`, p.kind, group, deprecated, version))
	}
	w.Header().Set("Content-Type", f.mediaType)
	_, _ = w.Write(text) // the client has gone
}

// encode returns the page as an object.
func (p page) encode(f form) ([]byte, error) {
	object := p.object(head{p.kind, group + "/" + f.version, metadata{component}})
	if f.mediaType == "application/yaml" {
		return yaml.Marshal(object)
	}
	text, err := json.Marshal(object)
	return append(text, '\n'), err
}

// negotiate returns the form that an Accept header asks for.
func (p page) negotiate(accept string) (form, bool) {
	if strings.TrimSpace(accept) == "" {
		return form{}, true
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
				return form{mediaType: mediaType}, true
			case main != "text" && kind == p.kind && g == group && (v == version || v == deprecated):
				return form{mediaType, v}, true
			}
		}
	}
	return form{}, false
}
