package kernelspace

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice/internal/dataplane/differ"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/hns"
	"sluice/internal/proxy"
)

type planned = differ.Planned[id, value]

// Render writes down what Sync would write, an object in each line. Without a
// difference it asks nothing: the version of Windows is a current one, and the
// network an overlay if there is a source VIP.
func (d *Dataplane) Render(ctx context.Context, r *mode.Rendering) error {
	if r.Diff {
		if err := d.look(ctx, r.Want); err != nil {
			return err
		}
	} else {
		d.imagine(r.Want)
	}
	all, refused, err := differ.Plan(ctx, d.objects(), r.Want)
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b planned) int { return compareIDs(a.ID, b.ID) })
	for _, kind := range []string{"endpoint", "load balancer"} {
		r.Title("HNS " + kind + "s")
		for _, p := range all {
			was, is := p.Sides(func(x id, v value) []string { return []string{x.text(v)} })
			if p.ID.kind() == kind && r.Concerns(p.Rows) && !slices.Equal(was, is) {
				r.Print(was, is)
			}
		}
	}
	for key, sp := range r.Want.Rows {
		if err := d.limits(sp, r.Want.Node); err != nil && refused[key] == nil {
			refused[key] = err
		}
	}
	r.Refused(refused)
	return nil
}

// imagine makes up a service that has nothing.
func (d *Dataplane) imagine(want *proxy.State) {
	d.features = hns.Features{DSR: true, DualStack: true, RemoteSubnet: true, SessionAffinity: true, ModifyLoadBalancer: true}
	if d.options.SourceVIP.IsValid() {
		d.has.network.Type = "Overlay"
	}
	d.begin(want)
}

func compareIDs(a, b id) int {
	return cmp.Or(cmp.Compare(a.family, b.family), a.addr.Compare(b.addr), cmp.Compare(a.port, b.port), cmp.Compare(a.protocol, b.protocol))
}

func (x id) kind() string {
	if x.protocol == 0 {
		return "endpoint"
	}
	return "load balancer"
}

// String names an object.
func (x id) String() string {
	switch {
	case x.protocol == 0:
		return fmt.Sprintf("endpoint %v", x.addr)
	case !x.addr.IsValid():
		return fmt.Sprintf("load balancer %v NodePort %d %v", x.protocol, x.port, x.family)
	default:
		return fmt.Sprintf("load balancer %v %v", x.protocol, netip.AddrPortFrom(x.addr, x.port))
	}
}

// text returns an object as a line.
func (x id) text(v value) string {
	words := []string{x.String()}
	add := func(on bool, format string, args ...any) {
		if on {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	add(x.protocol == 0, "mac %s", v.mac)
	add(v.provider.IsValid(), "at %v", v.provider)
	add(x.protocol != 0, "to port %d of", v.port)
	for _, a := range v.to {
		add(true, "%v", a)
	}
	add(x.check, "this node")
	add(v.source.IsValid(), "from %v", v.source)
	add(v.flags != 0, "%v", v.flags)
	return strings.Join(words, " ")
}
