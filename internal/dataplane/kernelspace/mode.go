package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/hns"
	"sluice/internal/proxy"
)

// ModeWith returns the mode over a service. If service is nil, the mode can only be rendered.
func ModeWith(service hns.Interface) mode.Mode {
	with := func(s mode.Settings) *Dataplane { return New(service, links, s) }
	return mode.Mode{
		Name: "kernelspace", Balancing: []proxy.Balancing{proxy.Random, proxy.SourceHash}, PreservesDestination: true,
		Prepare: func(context.Context, mode.Settings, bool) error { return nil },
		Open:    func(_ context.Context, s mode.Settings) (proxy.Dataplane, error) { return with(s), nil },
		Probe:   func(ctx context.Context, s mode.Settings) ([]proxy.Family, error) { return with(s).Probe(ctx) },
		Render:  func(ctx context.Context, r *mode.Rendering) error { return with(r.Settings).Render(ctx, r) },
		Cleanup: func(ctx context.Context, s mode.Settings, open proxy.Dataplane) ([]string, error) {
			if open != nil {
				return nil, nil // the open dataplane has adopted everything
			}
			return with(s).Cleanup(ctx)
		},
	}
}

// Probe returns the families that HNS supports. An overlay network supports the family of its
// source VIP only. It is no error if the network does not exist yet: the network plugin may create
// it later.
func (d *Dataplane) Probe(ctx context.Context) ([]proxy.Family, error) {
	if err := d.askFeatures(ctx); err != nil {
		return nil, err
	}
	if err := d.readNetwork(ctx); err != nil && !errors.Is(err, hns.ErrNotFound) {
		return nil, err
	}
	switch {
	case d.inv.overlay():
		return []proxy.Family{proxy.FamilyOf(d.options.SourceVIP)}, d.overlayProblem()
	case !d.features.DualStack:
		return []proxy.Family{proxy.IPv4}, nil
	default:
		return proxy.Families[:], nil
	}
}

func (d *Dataplane) askFeatures(ctx context.Context) (err error) {
	d.features, err = d.service.Features(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("ask HNS for its features: %w", err)
	case d.options.DSR && !d.features.DSR:
		return errors.New("this version of Windows has no direct server return: remove --enable-dsr")
	default:
		return nil
	}
}

// Cleanup removes the objects of a service proxy on the network of the pods, and returns their
// descriptions.
func (d *Dataplane) Cleanup(ctx context.Context) (removed []string, err error) {
	if err := d.readAll(ctx); errors.Is(err, hns.ErrNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var all []*change
	d.listOurs(func(x id, v value) { all = append(all, &change{ID: x, Old: v, Had: true}) })
	slices.SortFunc(all, byRank)
	for _, c := range all {
		if failed := d.applyChange(ctx, *c); failed != nil {
			err = errors.Join(err, failed)
		} else {
			removed = append(removed, "HNS "+c.ID.String())
		}
	}
	return removed, err
}

// links returns the MACs of this node's links, by their addresses.
func links() (map[netip.Addr]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	macs := map[netip.Addr]string{}
	for _, l := range all {
		addrs, err := l.Addrs()
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && len(l.HardwareAddr) > 0 {
				macs[p.Addr()] = l.HardwareAddr.String()
			}
		}
	}
	return macs, nil
}
