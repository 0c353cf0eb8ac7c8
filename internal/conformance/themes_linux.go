package conformance

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/proxy"
)

// RunThemes plays the groups of the table, by theme, against a daemon which hears of
// objects by itself, and tells of each theme how many cases were played. Stories are
// not among them, which need a dataplane that they can make wait, nor are the decision
// tables.
func RunThemes(t *testing.T, d Dataplane, told func(theme string, cases int)) {
	parts, err := loadParts()
	if err != nil {
		t.Fatal(err)
	}
	b := newTestbed(t, d)
	for _, p := range parts {
		if p.Theme == crossed {
			continue // of which the themes have a part
		}
		cases := 0
		passed := t.Run(p.Theme, func(t *testing.T) {
			for _, g := range p.Groups {
				if g.needsMore(d) {
					continue
				}
				t.Run(g.ID, func(t *testing.T) {
					failures := b.runGroup(t.Context(), g)
					report(t, g.playing(d.Mode), failures)
					cases += len(g.playing(d.Mode)) - len(failures) // of a theme that passes, those are skipped
				})
			}
		})
		if passed && cases > 0 {
			told(p.Theme, cases)
		}
	}
}

// needsMore reports whether a group has what flags do not make: ranges, which whoever
// keeps the objects has, NodePorts on loopback, which mode nftables serves only where
// nobody asked for a mode, and rows that the mode refuses, so that a daemon never says
// that all is in force.
func (g *Group) needsMore(d Dataplane) bool {
	local := g.Config.LocalhostNodePort
	if len(g.Config.ServiceCIDRs) > 0 || d.Mode == "nftables" && local != nil && *local {
		return true
	}
	refused := func(p v1.ServicePort) bool { return p.Protocol == v1.ProtocolSCTP && d.Refuses[proxy.SCTP] != "" }
	return slices.ContainsFunc(g.worlds(), func(w *World) bool {
		return slices.ContainsFunc(w.Services, func(s *v1.Service) bool { return slices.ContainsFunc(s.Spec.Ports, refused) })
	})
}
