package zpages

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
)

// flagz is the object of /flagz.
type flagz struct {
	head
	Flags map[string]string `json:"flags,omitempty"`
}

// Flagz answers with flags and the values they have.
func Flagz(flags map[string]string) http.Handler {
	return page{
		kind: "Flagz",
		text: func(w io.Writer) {
			for _, name := range slices.Sorted(maps.Keys(flags)) {
				_, _ = fmt.Fprintf(w, "%s=%s\n", name, flags[name])
			}
		},
		object: func(h head) any { return flagz{h, flags} },
	}
}
