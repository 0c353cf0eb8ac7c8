package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"sluice/internal/kernel/ipvs"
	"sluice/internal/kernel/link"
	"sluice/internal/kernel/sysctl"
)

// wantedSettings are the host's settings that the mode needs: connections are
// tracked, so that they can be masqueraded; a client that comes from the same
// port again gets a server anew; flows and memories of servers that go end.
func wantedSettings(strictARP bool) map[string]string {
	all := map[string]string{
		"net/ipv4/vs/conntrack":                 "1",
		"net/ipv4/vs/conn_reuse_mode":           "1",
		"net/ipv4/vs/expire_nodest_conn":        "1",
		"net/ipv4/vs/expire_quiescent_template": "1",
	}
	if strictARP { // only the link that has an address answers for it
		all["net/ipv4/conf/all/arp_ignore"], all["net/ipv4/conf/all/arp_announce"] = "1", "2"
	}
	return all
}

// prepare makes sure of the link and of the host's settings, and once of timeouts.
// What settings were is noted on the link before, by whoever changes them first.
func (d *Dataplane) prepare(ctx context.Context) error {
	were, err := d.kernel.link.Find()
	if errors.Is(err, link.ErrNoLink) {
		were, err = link.Note{}, d.kernel.link.Create()
		if err == nil && len(d.were) > 0 { // another process deleted it
			were, err = d.were, d.kernel.link.SetNote(d.were)
		}
	}
	if err != nil {
		return err
	}
	to := wantedSettings(d.options.StrictARP)
	if d.ready && len(were) > 0 {
		return d.kernel.set(ctx, to)
	}
	for name := range to {
		if _, noted := were[name]; !noted {
			if were[name], err = d.kernel.settings.Read(name); err != nil {
				return fmt.Errorf("read a setting of the host: %w", err)
			}
		}
	}
	if err := d.kernel.link.SetNote(were); err != nil {
		return err
	}
	d.were = were
	for name, was := range were {
		if to[name] == "" {
			to[name] = was // not wanted any more
		}
	}
	t := ipvs.Timeouts{TCP: d.options.TCPTimeout, TCPFin: d.options.TCPFinTimeout, UDP: d.options.UDPTimeout}
	if err = d.kernel.set(ctx, to); err == nil && t != (ipvs.Timeouts{}) {
		err = d.kernel.servers.SetTimeouts(ctx, t)
	}
	d.ready = err == nil
	return err
}

// set changes settings of the host, and says so.
func (k kernel) set(ctx context.Context, to map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(to)) {
		was, err := sysctl.Change(k.settings, name, to[name])
		if err != nil {
			return err
		}
		if was != to[name] {
			klog.FromContext(ctx).Info("Changed a setting of the host", "setting", strings.ReplaceAll(name, "/", "."), "from", was, "to", to[name])
		}
	}
	return nil
}
