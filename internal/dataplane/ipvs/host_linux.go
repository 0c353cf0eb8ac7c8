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

// wantedSettings returns the sysctls that the mode needs: connections are tracked, so
// that they can be masqueraded; a client that reuses a source port is scheduled anew;
// flows and persistence templates of removed servers expire.
func wantedSettings(strictARP bool) map[string]string {
	all := map[string]string{
		"net/ipv4/vs/conntrack":                 "1",
		"net/ipv4/vs/conn_reuse_mode":           "1",
		"net/ipv4/vs/expire_nodest_conn":        "1",
		"net/ipv4/vs/expire_quiescent_template": "1",
	}
	if strictARP { // only the link that has an address answers ARP requests for it
		all["net/ipv4/conf/all/arp_ignore"], all["net/ipv4/conf/all/arp_announce"] = "1", "2"
	}
	return all
}

// prepare creates the link if needed and sets the sysctls, and on the first call the
// timeouts. It first records the original sysctls on the link, unless an earlier daemon
// already has.
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
	if len(were) == 0 { // another process has set the alias
		maps.Copy(were, d.were)
	}
	for name := range to {
		if _, noted := were[name]; !noted {
			if were[name], err = d.kernel.settings.Read(name); err != nil {
				return fmt.Errorf("read a sysctl: %w", err)
			}
		}
	}
	if err := d.kernel.link.SetNote(were); err != nil {
		return err
	}
	d.were = were
	for name, was := range were {
		if to[name] == "" {
			to[name] = was // an earlier configuration needed it, this one does not
		}
	}
	t := ipvs.Timeouts{TCP: d.options.TCPTimeout, TCPFin: d.options.TCPFinTimeout, UDP: d.options.UDPTimeout}
	if err = d.kernel.set(ctx, to); err == nil && t != (ipvs.Timeouts{}) {
		err = d.kernel.servers.SetTimeouts(ctx, t)
	}
	d.ready = err == nil
	return err
}

// set changes sysctls, and logs each change.
func (k kernel) set(ctx context.Context, to map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(to)) {
		was, err := sysctl.Change(k.settings, name, to[name])
		if err != nil {
			return err
		}
		if was != to[name] {
			klog.FromContext(ctx).Info("Changed a sysctl", "name", strings.ReplaceAll(name, "/", "."), "old", was, "new", to[name])
		}
	}
	return nil
}
