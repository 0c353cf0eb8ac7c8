package ebpf

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
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

// Render writes down what Sync would write: the entries that rows have in maps, and
// the rules. What sockets of the node do depends on its routes; without a kernel it
// is as if they said nothing about sources.
func Render(ctx context.Context, r *mode.Rendering) error {
	d := &Dataplane{kernel: &kernel{}, host: &host{}, cidrs: r.Want.CIDRs, untracking: untracking{pods: r.Settings.EBPF.Untracked, begun: true}}
	if r.Diff {
		if err := d.openToRead(r); err != nil {
			return errors.Join(err, d.kernel.close())
		}
	}
	all, refused, err := differ.Plan(ctx, d.objects(), r.Want)
	if err = errors.Join(err, d.kernel.close()); err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b planned) int {
		return cmp.Or(cmp.Compare(a.ID.table, b.ID.table), slices.Compare(a.ID.order(), b.ID.order()))
	})
	r.Title("entries of maps")
	for _, p := range all {
		if r.Concerns(p.Rows) {
			r.Print(p.Sides(func(x id, v value) []string { return []string{x.text(v)} }))
		}
	}
	r.Refused(refused)
	return rules(r.Settings, d.untracked).Render(ctx, r)
}

// openToRead opens the maps that rows are written to, as far as there are any, and
// reads what the host is like.
func (d *Dataplane) openToRead(r *mode.Rendering) error {
	for name, m := range map[string]**ebpf.Map{
		"services": &d.kernel.Services, "endpoints": &d.kernel.Endpoints, "members": &d.kernel.Members,
	} {
		var err error
		*m, err = ebpf.LoadPinnedMap(filepath.Join(r.EBPF.BPFRoot, format, name), &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("open map %s below %s (run as root): %w", name, r.EBPF.BPFRoot, err)
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

// order returns the key in an order that people expect.
func (x id) order() (out []byte) {
	words := map[table]int{services: 0, endpoints: 2, members: 1}[x.table] // numbers that it begins with
	for i := range words {
		out = binary.BigEndian.AppendUint32(out, binary.NativeEndian.Uint32(x.key[4*i:]))
	}
	return append(out, x.key[4*words:]...)
}

// text returns an entry as people read it.
func (x id) text(v value) string {
	number := func(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }
	switch k := x.key[:]; x.table {
	case services:
		var ways []string
		for i, from := range proxy.Origins {
			way := "the rules"
			if a := v[12+i]; a&translate != 0 {
				way = proxy.Scope(a & localList >> 1).String()
			}
			ways = append(ways, fmt.Sprintf("%v: %s", from, way))
		}
		return fmt.Sprintf("services %s: row %d, %d endpoints, %d local; %s", frontendText(k), number(v[:]), number(v[4:]), number(v[8:]), strings.Join(ways, ", "))
	case endpoints:
		scope, slot := proxy.ScopeCluster, number(k[4:])
		if slot&localBit != 0 {
			scope, slot = proxy.ScopeLocal, slot&^localBit
		}
		text := fmt.Sprintf("endpoints row %d, %v %d: %v", number(k), scope, slot, addrPortOf(v[:]))
		if binary.NativeEndian.Uint16(v[18:])&here != 0 {
			text += ", may be on this node"
		}
		if binary.NativeEndian.Uint16(v[18:])&inServiceRange != 0 {
			text += ", within the ranges of Services"
		}
		return text
	default:
		return fmt.Sprintf("members row %d: flows to %v go on", number(k), addrPortOf(k[4:]))
	}
}

func frontendText(k []byte) string {
	protocol := proxy.Protocol(k[18])
	if family := map[byte]proxy.Family{4: proxy.IPv4, 6: proxy.IPv6}; k[19] != 0 {
		return fmt.Sprintf("NodePort %d/%v %v", binary.BigEndian.Uint16(k[16:]), protocol, family[k[19]])
	}
	return fmt.Sprintf("%v/%v", addrPortOf(k), protocol)
}

// addrPortOf reads what putAddr wrote.
func addrPortOf(b []byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)).Unmap(), binary.BigEndian.Uint16(b[16:]))
}
