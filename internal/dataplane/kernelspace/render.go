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

// Render prints what Sync would write, one object per line. Unless a difference is wanted it does
// not call HNS, but assumes a current version of Windows, and an overlay network if a source VIP is
// set.
func (d *Dataplane) Render(ctx context.Context, r *mode.Rendering) error {
	if r.Diff && d.service == nil {
		return errors.New("compare with the Host Networking Service: it exists on Windows only")
	}
	if r.Diff {
		if err := d.readState(ctx, r.Want.Node); err != nil {
			return err
		}
	} else {
		d.assumeEmpty(r.Want.Node)
	}
	all, refused, err := differ.Plan(ctx, d.objects(), r.Want)
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b planned) int { return compareIDs(a.ID, b.ID) })
	for _, kind := range []string{"endpoint", "load balancer"} {
		r.Title("HNS " + kind + "s")
		for _, p := range all {
			before, after := p.Sides(func(x id, v value) []string { return []string{d.text(x, v)} })
			if strings.HasPrefix(p.ID.String(), kind) && r.Concerns(p.Rows) && !slices.Equal(before, after) {
				r.Print(before, after)
			}
		}
	}
	maps.Copy(refused, d.op.refused)
	r.Refused(refused)
	return nil
}

// assumeEmpty sets the state of a service that supports everything and has no objects.
func (d *Dataplane) assumeEmpty(n *proxy.Node) {
	d.beginOperation()
	d.ips, d.features = n.IPs, hns.Features{DSR: true, DualStack: true, RemoteSubnet: true, SessionAffinity: true, ModifyLoadBalancer: true}
	if d.options.SourceVIP.IsValid() {
		d.inv.network.Type = "Overlay"
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

// text returns an object as one line, as HNS has it or as it is to be.
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
			e = d.inv.all[x.stray]
		case v.listed:
			e = d.inv.endpoints[x.addr].Endpoint
		}
		add(true, "mac %s", e.MAC)
		add(e.Provider.IsValid(), "at %v", e.Provider)
		return strings.Join(words, " ")
	}
	l, _ := d.loadBalancer(x, v)
	if v.listed {
		l = d.inv.balancers[x].LoadBalancer
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

// addrs returns the sorted addresses of a load balancer's endpoints; an endpoint that no longer
// exists has the zero address.
func (d *Dataplane) addrs(x id, v value) (all []netip.Addr) {
	for _, e := range v.to {
		all = append(all, e.Addr.Addr())
	}
	if v.listed && !x.check {
		for _, e := range d.inv.balancers[x].Endpoints {
			all = append(all, proxy.AddrOf(d.inv.all[e].Addrs, x.family))
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}
