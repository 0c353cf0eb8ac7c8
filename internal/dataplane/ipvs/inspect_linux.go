package ipvs

import (
	"context"
	"fmt"
	"net/netip"

	"sluice/internal/kernel/ipvs"
	"sluice/internal/proxy"
)

// Verify reads back the IPVS objects of a row, or the sysctls if row is zero. The
// kernel does not announce what other processes change there.
func (d *Dataplane) Verify(ctx context.Context, row proxy.PortKey) ([]proxy.Difference, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out proxy.Inspected
	if row == (proxy.PortKey{}) {
		err := d.inspectSettings(&out)
		return out.Differences, err
	}
	out, err := d.inspectRow(ctx, row)
	return out.Differences, err
}

// Inspect reads back the rules and the IPVS objects of a row.
func (d *Dataplane) Inspect(ctx context.Context, what proxy.Inspection) (proxy.Inspected, error) {
	is, err := d.Dataplane.Inspect(ctx, what)
	if err != nil {
		return is, err
	}
	more, err := d.inspectServers(ctx, what.Row)
	is.Add(more.Objects, more.Differences...)
	return is, err
}

// inspectServers reads back the virtual servers of a row with their real servers,
// their addresses on the link, and the sysctls.
func (d *Dataplane) inspectServers(ctx context.Context, key proxy.PortKey) (proxy.Inspected, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out, err := d.inspectRow(ctx, key)
	if err == nil {
		err = d.inspectSettings(&out)
	}
	return out, err
}

func (d *Dataplane) inspectRow(ctx context.Context, key proxy.PortKey) (proxy.Inspected, error) {
	row, out, err := d.differ.Inspect(ctx, key, nil)
	if err != nil {
		return out, err
	}
	addrs := map[netip.Addr]bool{}
	for s := range d.fronts(row.ServicePort) {
		addrs[s.Addr.Addr()] = true
	}
	for a := range addrs {
		has, err := d.kernel.link.Has(a)
		if err != nil {
			return out, err
		}
		if out.Add(1); !has {
			out.Add(0, proxy.Difference{Object: "address of link " + linkName, Want: addressText(a)})
		}
	}
	return out, nil
}

func (d *Dataplane) inspectSettings(out *proxy.Inspected) error {
	for name, want := range wantedSettings(d.options.StrictARP) {
		have, err := d.kernel.settings.Read(name)
		if err != nil {
			return fmt.Errorf("read a sysctl: %w", err)
		}
		if out.Add(1); have != want {
			out.Add(0, proxy.Difference{Object: "sysctl", Want: settingText(name, want), Have: settingText(name, have)})
		}
	}
	return nil
}

// read lists the wanted servers that exist, and all other real servers of the same
// virtual servers that get new connections.
func (d *Dataplane) read(ctx context.Context, some []id, have func(id, value)) error {
	wanted, servers := map[id]bool{}, map[ipvs.Server]bool{}
	for _, x := range some {
		wanted[x], servers[x.server] = true, true
	}
	for s := range servers {
		settings, found, err := d.kernel.servers.Server(ctx, s)
		if err != nil {
			return err
		}
		if !found {
			continue // so it has no real servers
		}
		have(id{server: s}, value{settings: settings})
		reals, err := d.kernel.servers.Reals(ctx, s)
		if err != nil {
			return err
		}
		for _, r := range reals {
			if x := (id{s, r.Addr}); wanted[x] || r.Weight > 0 {
				have(x, value{weight: r.Weight})
			}
		}
	}
	return nil
}

// difference describes what a server should be and what it is, as ipvsadm --save
// prints it.
func difference(x id, want, have *value) proxy.Difference {
	d := proxy.Difference{Object: x.server.String()}
	if x.real.IsValid() {
		d.Object = "real server of " + d.Object
	}
	if want != nil {
		d.Want = x.text(*want)
	}
	if have != nil {
		d.Have = x.text(*have)
	}
	return d
}
