package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"sluice/internal/proxy"
)

// Verify reads back the entries of a row, or, for a zero key, everything that rows share:
// the kernel announces neither changes of map entries nor that a program is detached.
func (d *Dataplane) Verify(ctx context.Context, row proxy.PortKey) ([]proxy.Difference, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.disabled != nil {
		return nil, nil
	}
	if row != (proxy.PortKey{}) {
		_, out, err := d.differ.Inspect(ctx, row, nil)
		return out.Differences, err
	}
	var out proxy.Inspected
	err := errors.Join(d.inspectSettings(&out), d.kernel.inspectPrograms(&out))
	for _, f := range proxy.Families {
		err = errors.Join(err, d.inspectNodeAddrs(f, &out))
	}
	return out.Differences, err
}

// Inspect reads back the rules of a row, its entries in the maps, and what all rows share.
func (d *Dataplane) Inspect(ctx context.Context, what proxy.Inspection) (proxy.Inspected, error) {
	is, err := d.Dataplane.Inspect(ctx, what)
	if err != nil {
		return is, err
	}
	more, err := d.inspectSockets(ctx, what.Row)
	is.Add(more.Objects, more.Differences...)
	is.Unread = more.Unread
	return is, err
}

// inspectSockets reads back the entries of a row, the entries that all rows share, and
// which programs are attached.
func (d *Dataplane) inspectSockets(ctx context.Context, key proxy.PortKey) (out proxy.Inspected, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.disabled != nil {
		out.Unread = "the maps, because sockets are not translated: " + d.disabled.Error()
		return out, nil
	}
	row, out, err := d.differ.Inspect(ctx, key, nil)
	if err != nil {
		return out, err
	}
	isNodePort := func(f proxy.Frontend) bool { return f.Kind == proxy.NodePort }
	if row.ServicePort != nil && slices.ContainsFunc(row.Frontends, isNodePort) {
		err = d.inspectNodeAddrs(key.Family, &out)
	}
	err = errors.Join(err, d.inspectSettings(&out), d.kernel.inspectPrograms(&out))
	return out, err
}

// read passes those of the entries that exist to have, with their values.
func (d *Dataplane) read(_ context.Context, some []id, have func(id, value)) error {
	for _, x := range some {
		var v value
		var found bool
		var err error
		switch d.reads++; x.table {
		case services:
			v, found, err = get[frontendKey, serviceValue](d.kernel.Services, x)
		case endpoints:
			v, found, err = get[slotKey, endpointValue](d.kernel.Endpoints, x)
		default:
			_, found, err = get[memberKey, memberValue](d.kernel.Members, x)
		}
		if err != nil {
			return fmt.Errorf("read maps: %w", err)
		}
		if found {
			have(x, v)
		}
	}
	return nil
}

// get reads an entry of a map, padding its value with zeros.
func get[K, V byteArray](m *ebpf.Map, x id) (out value, found bool, err error) {
	var k K
	var v V
	fill(&k, x.key)
	if err := m.Lookup(k, &v); errors.Is(err, ebpf.ErrKeyNotExist) {
		return out, false, nil
	} else if err != nil {
		return out, false, err
	}
	for i := range len(v) {
		out[i] = v[i]
	}
	return out, true, nil
}

// difference describes an entry as it should be and as it is; nil means that there is
// none.
func difference(x id, want, have *value) proxy.Difference {
	d := proxy.Difference{Object: "entry of map " + [...]string{services: "services", endpoints: "endpoints", members: "members"}[x.table]}
	if want != nil {
		d.Want = x.text(*want)
	}
	if have != nil {
		d.Have = x.text(*have)
	}
	if d.Have == d.Want {
		d.Have += ", with a different checksum or different flags"
	}
	return d
}

// inspectNodeAddrs compares the entries of the node's addresses that take NodePorts.
func (d *Dataplane) inspectNodeAddrs(f proxy.Family, out *proxy.Inspected) error {
	for k, want := range d.nodeAddrs {
		a := netip.AddrFrom16(k).Unmap()
		if proxy.FamilyOf(a) != f || want&addrTakesNodePorts == 0 {
			continue
		}
		var have uint32
		err := d.kernel.NodeAddrs.Lookup(k, &have)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("read addresses of the node: %w", err)
		}
		if out.Add(1); have != want {
			diff := proxy.Difference{Object: "entry of map node_addrs", Want: fmt.Sprintf("%v: flags %d", a, want)}
			if err == nil {
				diff.Have = fmt.Sprintf("%v: flags %d", a, have)
			}
			out.Add(0, diff)
		}
	}
	return nil
}

// inspectSettings checks that the lease is valid, and that the node's namespace is ours.
func (d *Dataplane) inspectSettings(out *proxy.Inspected) error {
	var s settings
	now, err := monotonicNow()
	if err = errors.Join(err, d.kernel.Settings.Lookup(uint32(0), &s)); err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	node, until := binary.NativeEndian.Uint64(s[:]), binary.NativeEndian.Uint64(s[8:])
	out.Add(1)
	if node != d.nodeCookie {
		out.Add(0, proxy.Difference{
			Object: "entry of map settings", Want: fmt.Sprintf("for network namespace %d", d.nodeCookie), Have: fmt.Sprintf("for network namespace %d", node),
		})
	}
	if until <= now {
		out.Add(0, proxy.Difference{Object: "entry of map settings", Want: "a valid lease", Have: "an expired lease, with which only the rules translate"})
	}
	return nil
}

// inspectPrograms checks that the programs are attached, and are those of this process.
func (k *kernel) inspectPrograms(out *proxy.Inspected) error {
	hooks := k.translationHooks()
	if k.flags&flagCountBytes != 0 {
		hooks = append(hooks, k.meterHooks()...)
	}
	for _, h := range hooks {
		attached, err := k.attached(h)
		if err != nil {
			return err
		}
		if out.Add(1); !attached {
			out.Add(0, proxy.Difference{Object: "program " + h.name, Want: "attached to cgroup " + k.cgroup, Have: "not attached, or replaced by another program"})
		}
	}
	return nil
}

// attached reports whether a program of this process is attached at a hook.
func (k *kernel) attached(h hook) (bool, error) {
	l, err := link.LoadPinnedLink(filepath.Join(k.pins, h.name), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open link %s: %w", h.name, err)
	}
	defer func() { _ = l.Close() }()
	if same, err := k.sameCgroup(l); err != nil || !same {
		return false, err
	}
	info, err := l.Info()
	if err != nil {
		return false, fmt.Errorf("read link %s: %w", h.name, err)
	}
	own, err := h.program.Info()
	if err != nil {
		return false, fmt.Errorf("read program %s: %w", h.name, err)
	}
	id, _ := own.ID()
	return info.Program == id, nil
}
