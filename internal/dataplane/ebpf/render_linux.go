package ebpf

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/differ"
	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

type planned = differ.Planned[id, value]

// Render prints what Sync would write: the entries of rows in the maps, and the rules.
// Which connections of the node are translated depends on its addresses and routes, which
// are read for a diff only; otherwise Render assumes that none is an obstacle.
func Render(ctx context.Context, r *mode.Rendering) error {
	d := &Dataplane{kernel: &kernel{}, host: &host{}, cidrs: r.Want.CIDRs, nextCIDRs: r.Want.CIDRs, untracking: untracking{pods: r.Settings.EBPF.Untracked, active: true}}
	if r.Diff {
		if err := d.openForReading(r); err != nil {
			return errors.Join(err, d.kernel.close())
		}
	}
	all, refused, err := differ.Plan(ctx, d.differMode(), r.Want)
	if err = errors.Join(err, d.kernel.close()); err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b planned) int {
		return cmp.Or(cmp.Compare(a.ID.table, b.ID.table), slices.Compare(a.ID.sortKey(), b.ID.sortKey()))
	})
	r.Title("entries of maps")
	for _, p := range all {
		if r.Concerns(p.Rows) {
			r.Print(p.Sides(func(x id, v value) []string { return []string{x.text(v)} }))
		}
	}
	r.Refused(refused)
	return overlay(r.Settings, d.untracked).Render(ctx, r)
}

// openForReading opens the maps of rows, as far as they exist, and reads the addresses and
// routes of the host.
func (d *Dataplane) openForReading(r *mode.Rendering) error {
	for name, m := range map[string]**ebpf.Map{
		"services": &d.kernel.Services, "endpoints": &d.kernel.Endpoints, "members": &d.kernel.Members,
	} {
		var err error
		*m, err = ebpf.LoadPinnedMap(filepath.Join(r.EBPF.BPFRoot, format, name), &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("open map %s below %s: %w; run as root", name, r.EBPF.BPFRoot, err)
		}
	}
	routes, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open route netlink: %w", err)
	}
	defer routes.Close()
	d.host, err = readHost(routes, r.Want.Node)
	return err
}

// sortKey returns the key of the entry with its numbers in big-endian byte order, so that
// comparing bytes compares numbers.
func (x id) sortKey() (out []byte) {
	words := map[table]int{services: 0, endpoints: 2, members: 1}[x.table] // how many numbers it begins with
	for i := range words {
		out = binary.BigEndian.AppendUint32(out, binary.NativeEndian.Uint32(x.key[4*i:]))
	}
	return append(out, x.key[4*words:]...)
}

// text returns an entry in readable form.
func (x id) text(v value) string {
	number := func(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }
	switch k := x.key[:]; x.table {
	case services:
		var actions []string
		for i, from := range proxy.Origins {
			action := "the rules"
			if a := v[12+i]; a&actionTranslate != 0 {
				action = proxy.Scope(a & actionLocalList >> 1).String()
			}
			actions = append(actions, fmt.Sprintf("%v: %s", from, action))
		}
		return fmt.Sprintf("services %s: row %d, %d endpoints, %d local; %s", frontendText(k), number(v[:]), number(v[4:]), number(v[8:]), strings.Join(actions, ", "))
	case endpoints:
		scope, slot := proxy.ScopeCluster, number(k[4:])
		if slot&localSlotBit != 0 {
			scope, slot = proxy.ScopeLocal, slot&^localSlotBit
		}
		text := fmt.Sprintf("endpoints row %d, %v %d: %v", number(k), scope, slot, addrPort(v[:], 0, 16))
		if binary.NativeEndian.Uint16(v[18:])&endpointMayBeLocal != 0 {
			text += ", may be on this node"
		}
		if binary.NativeEndian.Uint16(v[18:])&endpointInServiceRange != 0 {
			text += ", within the CIDRs of Services"
		}
		return text
	default:
		return fmt.Sprintf("members row %d: %v is draining", number(k), addrPort(k, 4, 20))
	}
}

func frontendText(k []byte) string {
	protocol := proxy.Protocol(k[18])
	if family := map[byte]proxy.Family{4: proxy.IPv4, 6: proxy.IPv6}; k[19] != 0 {
		return fmt.Sprintf("NodePort %d/%v %v", binary.BigEndian.Uint16(k[16:]), protocol, family[k[19]])
	}
	return fmt.Sprintf("%v/%v", addrPort(k, 0, 16), protocol)
}
