package kernelspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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
	if r.Diff && d.service == nil {
		return errors.New("there is nothing to compare with: the Host Networking Service is a part of Windows")
	}
	if r.Diff {
		if err := d.look(ctx, r.Want.Node); err != nil {
			return err
		}
	} else {
		d.imagine(r.Want.Node)
	}
	all, refused, err := differ.Plan(ctx, d.objects(), r.Want)
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b planned) int { return compareIDs(a.ID, b.ID) })
	for _, kind := range []string{"endpoint", "load balancer"} {
		r.Title("HNS " + kind + "s")
		for _, p := range all {
			was, is := p.Sides(func(x id, v value) []string { return []string{d.text(x, v)} })
			if strings.HasPrefix(p.ID.String(), kind) && r.Concerns(p.Rows) && !slices.Equal(was, is) {
				r.Print(was, is)
			}
		}
	}
	maps.Copy(refused, d.turn.refused)
	r.Refused(refused)
	return nil
}

// imagine makes up a service that has nothing.
func (d *Dataplane) imagine(n *proxy.Node) {
	d.begin()
	d.ips, d.features = n.IPs, hns.Features{DSR: true, DualStack: true, RemoteSubnet: true, SessionAffinity: true, ModifyLoadBalancer: true}
	if d.options.SourceVIP.IsValid() {
		d.has.network.Type = "Overlay"
	}
}

func compareIDs(a, b id) int {
	return cmp.Or(cmp.Compare(a.family, b.family), a.addr.Compare(b.addr), cmp.Compare(a.stray, b.stray), cmp.Compare(a.port, b.port), cmp.Compare(a.protocol, b.protocol))
}

func (x id) String() string {
	switch {
	case x.stray != "" && x.protocol == 0:
		return "endpoint " + x.stray
	case x.protocol == 0:
		return fmt.Sprintf("endpoint %v", x.addr)
	case !x.addr.IsValid():
		return fmt.Sprintf("load balancer %v NodePort %d %v", x.protocol, x.port, x.family)
	default:
		return fmt.Sprintf("load balancer %v %v", x.protocol, netip.AddrPortFrom(x.addr, x.port))
	}
}

// text returns an object as a line, as HNS has it or as it is to be.
func (d *Dataplane) text(x id, v value) string {
	words := []string{x.String()}
	add := func(on bool, format string, args ...any) {
		if on {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	if x.protocol == 0 {
		e := d.endpoint(x)
		switch {
		case x.stray != "":
			e = d.has.all[x.stray]
		case v.listed:
			e = d.has.endpoints[x.addr].Endpoint
		}
		add(true, "mac %s", e.MAC)
		add(e.Provider.IsValid(), "at %v", e.Provider)
		return strings.Join(words, " ")
	}
	l, _ := d.load(x, v)
	if v.listed {
		l = d.has.balancers[x].LoadBalancer
	}
	add(true, "to port %d of", l.InternalPort)
	for _, a := range d.addrs(x, v) {
		add(true, "%v", a)
	}
	add(x.check, "this node")
	add(l.SourceVIP.IsValid(), "from %v", l.SourceVIP)
	add(l.Flags != 0, "%v", l.Flags)
	return strings.Join(words, " ")
}

// addrs returns the addresses of a load balancer's endpoints; invalid: one is gone.
func (d *Dataplane) addrs(x id, v value) (all []netip.Addr) {
	for _, e := range v.to {
		all = append(all, e.Addr.Addr())
	}
	if v.listed && !x.check {
		for _, e := range d.has.balancers[x].Endpoints {
			all = append(all, proxy.AddrOf(d.has.all[e].Addrs, x.family))
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}
