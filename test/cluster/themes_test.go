package cluster

import (
	"flag"
	"strings"
	"testing"

	"sluice/internal/conformance/churn"
	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/reliability"
)

// themes are the modes that the packet table is played in.
var themes = flag.String("themes", "", "play the packet table by way of the API server in these `MODES`")

// TestThemes plays the packet table with objects that the API server keeps, of
// whatever version of Kubernetes. What it does not take is left out of the world,
// and the oracle is asked about what is left.
func TestThemes(t *testing.T) {
	if *themes == "" {
		t.Skip("plays the packet table with -themes only, as make reliability does")
	}
	for _, mode := range strings.FieldsFunc(*themes, func(r rune) bool { return r == ',' }) {
		t.Run(mode, func(t *testing.T) {
			refused := map[string]error{}
			s := churn.Settings{
				Mode: mode, Program: bed.Sluice(), Objects: "a real API server", Cgroups: bed.Cgroups,
				Open: func(node *lab.Host) (churn.Source, error) {
					a, err := openAPI(t, node)
					if err == nil {
						a.refused = refused
					}
					return a, err
				},
			}
			churn.RunThemes(t, s, func(theme string, cases int) {
				reliability.Record(t, reliability.Result{Fault: theme, Mode: mode, Tried: cases, Kubernetes: *release})
			})
			for name, err := range refused {
				t.Logf("not taken: %s: %v", name, err)
			}
		})
	}
}
