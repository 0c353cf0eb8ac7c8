package ipvs

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
	"sluice/internal/kernel/ipvs"
	"sluice/internal/kernel/link"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
)

type planned = differ.Planned[id, value]

// Render prints what Sync would write: sysctls, addresses of the link, servers as
// ipvsadm --save prints them, and rules.
func Render(ctx context.Context, r *mode.Rendering) error {
	var k kernel
	if r.Diff {
		var err error
		if k, err = openKernel(); err != nil {
			return errors.Join(explain(err), k.close())
		}
		defer func() { _ = k.close() }()
	}
	d := newDataplane(k.dry(), r.Settings)
	refused, err := d.render(ctx, r)
	if err != nil {
		return err
	}
	r.Want = r.Want.Without(refused)
	return d.overlay().Render(ctx, r)
}

// render prints everything but the rules.
func (d *Dataplane) render(ctx context.Context, r *mode.Rendering) (proxy.Refused, error) {
	d.left = map[ipvs.Server]bool{}
	all, refused, err := differ.Plan(ctx, d.objects(), r.Want)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(d.renderSettings(r), d.renderAddresses(r)); err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b planned) int {
		return cmp.Or(a.ID.server.Addr.Compare(b.ID.server.Addr), cmp.Compare(a.ID.server.Protocol, b.ID.server.Protocol), a.ID.real.Compare(b.ID.real))
	})
	r.Title("virtual servers and their real servers, as ipvsadm --save prints them")
	for _, p := range all {
		if r.Concerns(p.Rows) {
			r.Print(p.Sides(func(x id, v value) []string { return []string{x.text(v)} }))
		}
	}
	r.Refused(refused)
	return refused, nil
}

// renderAddresses prints the addresses to add to the link, and those to remove because
// no server needs them.
func (d *Dataplane) renderAddresses(r *mode.Rendering) error {
	needed := map[netip.Addr]bool{} // the value: whether to print it
	for _, f := range d.families {
		needed[aliases[f]] = r.Only == nil
	}
	for key, sp := range r.Want.Rows {
		for s := range d.fronts(sp) {
			needed[s.Addr.Addr()] = needed[s.Addr.Addr()] || r.Concerns([]*proxy.PortKey{&key})
		}
	}
	on, routed, err := d.kernel.link.List()
	if err != nil {
		return err
	}
	line := func(a netip.Addr) []string { return []string{addressText(a)} }
	r.Title("addresses of link " + linkName)
	for _, a := range slices.SortedFunc(slices.Values(append(on, routed...)), netip.Addr.Compare) {
		if _, stays := needed[a]; !stays && len(d.ours[a]) == 0 && r.Only == nil {
			r.Print(line(a), nil)
		}
		delete(needed, a)
	}
	for _, a := range slices.SortedFunc(maps.Keys(needed), netip.Addr.Compare) {
		if needed[a] {
			r.Print(nil, line(a))
		}
	}
	return nil
}

// addressText returns the command that adds an address to the link.
func addressText(a netip.Addr) string {
	return fmt.Sprintf("ip address add %v/%d dev %s", a, a.BitLen(), linkName)
}

// renderSettings prints the sysctls to change.
func (d *Dataplane) renderSettings(r *mode.Rendering) error {
	to := wantedSettings(d.options.StrictARP)
	r.Title("sysctls")
	for _, name := range slices.Sorted(maps.Keys(to)) {
		was, err := d.kernel.settings.Read(name)
		if err != nil {
			return fmt.Errorf("read a sysctl: %w", err)
		}
		if was != to[name] && r.Only == nil {
			r.Print([]string{settingText(name, was)}, []string{settingText(name, to[name])})
		}
	}
	return nil
}

// settingText returns a sysctl as a line of sysctl.conf.
func settingText(name, value string) string {
	return strings.ReplaceAll(name, "/", ".") + " = " + value
}

// text returns a server as ipvsadm --save prints it.
func (x id) text(v value) string {
	kind := map[proxy.Protocol]string{proxy.TCP: "-t", proxy.UDP: "-u", proxy.SCTP: "--sctp-service"}[proxy.Protocol(x.server.Protocol)]
	at := fmt.Sprintf("%s %v", kind, x.server.Addr)
	if x.real.IsValid() {
		return fmt.Sprintf("-a %s -r %v -m -w %d", at, x.real, v.weight)
	}
	text := fmt.Sprintf("-A %s -s %s", at, v.settings.Scheduler)
	if v.settings.Persistence > 0 {
		text += fmt.Sprintf(" -p %.0f", v.settings.Persistence.Seconds())
	}
	var flags []string
	if v.settings.Fallback {
		flags = append(flags, v.settings.Scheduler+"-fallback")
	}
	if v.settings.HashPorts {
		flags = append(flags, v.settings.Scheduler+"-port")
	}
	if flags != nil {
		text += " -b " + strings.Join(flags, ",")
	}
	return text
}

// dry returns a kernel that is read and not written. That of the zero kernel is empty.
func (k kernel) dry() kernel {
	if k.addrs == nil {
		k.addrs, k.relays = func() ([]netip.Addr, error) { return nil, nil }, func() (bool, error) { return false, nil }
	}
	return kernel{dryServers{k.servers}, dryLink{k.link}, sysctl.Dry{Kernel: k.settings}, k.addrs, k.relays, k.counted}
}

// dryServers reads servers and writes none. Without an Interface there are none.
type dryServers struct{ ipvs.Interface }

func (k dryServers) Servers(ctx context.Context) (map[ipvs.Server]ipvs.Settings, error) {
	if k.Interface == nil {
		return nil, nil
	}
	return k.Interface.Servers(ctx)
}

func (dryServers) SetTimeouts(context.Context, ipvs.Timeouts) error { return nil }

// dryLink reads a link and does not write it. Without a Holder it has no addresses.
type dryLink struct{ link.Holder }

func (l dryLink) Find() (link.Note, error) {
	if l.Holder == nil {
		return link.Note{}, nil
	}
	return l.Holder.Find()
}

func (l dryLink) List() (on, routed []netip.Addr, err error) {
	if _, err := l.Find(); l.Holder == nil || errors.Is(err, link.ErrNoLink) {
		return nil, nil, nil
	}
	return l.Holder.List()
}

func (dryLink) Create() error                            { return nil }
func (dryLink) SetNote(link.Note) error                  { return nil }
func (dryLink) Route(...netip.Addr) map[netip.Addr]error { return nil }
func (dryLink) Add(...netip.Addr) map[netip.Addr]error   { return nil }
