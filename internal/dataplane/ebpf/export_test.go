package ebpf

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/mode"
)

// Format names the layout of the maps.
const Format = format

// Layout tells the sizes of the maps that daemons take over, one line for each.
func Layout() (string, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		m := spec.Maps[name]
		if slices.Contains(unpinned, name) {
			continue
		}
		fmt.Fprintf(&b, "%s %v %d:%d x %d\n", name, m.Type, m.KeySize, m.ValueSize, m.MaxEntries)
	}
	return b.String(), nil
}

// Translated asks the kernel whether a socket was translated.
func (d *Dataplane) Translated(fd int) (bool, error) {
	const ways = 4
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	for _, m := range []*ebpf.Map{d.kernel.TCP, d.kernel.UDP} {
		set, failed := m.LookupBytes(uint32(cookie / ways % uint64(m.MaxEntries())))
		if err = errors.Join(err, failed); err != nil {
			return false, err
		}
		cookies, sockets := set[:8*ways], set[8*ways:]
		for each := len(sockets) / ways; len(cookies) > 0; cookies, sockets = cookies[8:], sockets[each:] {
			if binary.NativeEndian.Uint64(cookies) != cookie {
				continue
			}
			if m == d.kernel.UDP {
				return binary.NativeEndian.Uint32(sockets) > 0, nil // how many pairs are used
			}
			return slices.Max(sockets[:48]) > 0, nil // the pair
		}
	}
	return false, nil
}

// Map returns one of the maps that rows are written to.
func (d *Dataplane) Map(name string) *ebpf.Map {
	return map[string]*ebpf.Map{
		"services": d.kernel.Services, "endpoints": d.kernel.Endpoints, "members": d.kernel.Members,
		"spaces": d.kernel.Spaces, "node_addrs": d.kernel.NodeAddrs, "tcp_sockets": d.kernel.TCP,
		"generation": d.kernel.Generation,
	}[name]
}

// Change has a test write to maps as the mode itself does.
func (d *Dataplane) Change(f func() error) error { return d.kernel.change(f) }

// Freeze keeps programs from learning of changes: their generation stays the same.
func (d *Dataplane) Freeze() error {
	return d.locked(func() error {
		var now uint64
		if err := d.kernel.Generation.Lookup(uint32(0), &now); err != nil || now == 1 {
			return err
		}
		aside, err := unix.Mmap(-1, 0, len(d.kernel.shared), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return err
		}
		err = unix.Munmap(d.kernel.shared)
		d.kernel.shared = aside
		return errors.Join(err, d.kernel.Generation.Put(uint32(0), uint64(1)))
	})
}

// Renew lets programs act on, as the mode does from time to time.
func (d *Dataplane) Renew() error { return d.locked(func() error { return d.allow(lease) }) }

// OpenWithLimits opens a dataplane whose maps have room for fewer entries.
func OpenWithLimits(ctx context.Context, s mode.Settings, limits map[string]uint32) (*Dataplane, error) {
	return open(ctx, s, limits)
}

// Cuts reports whether a program looks for sockets that are to be cut.
func (d *Dataplane) Cuts() bool { return d.whileCutting() != nil }

// Expire ends the permission of programs, as time does when no daemon is there.
func (d *Dataplane) Expire() error {
	return d.locked(func() error { return d.kernel.allow(d.node, 1) })
}

// Permission returns for how long programs may go on.
func (d *Dataplane) Permission() (time.Duration, error) {
	var s settings
	now, err := sinceBoot()
	err = errors.Join(err, d.kernel.Settings.Lookup(uint32(0), &s))
	return time.Duration(binary.NativeEndian.Uint64(s[8:]) - now), err
}

// Writes returns how many entries of rows were written since the last time.
func (d *Dataplane) Writes() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.writes
	d.writes = 0
	return n
}

// Reads returns how many entries of rows were read one by one since the last time.
func (d *Dataplane) Reads() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.reads
	d.reads = 0
	return n
}

// CheckSum is what values carry.
func CheckSum(parts ...[]byte) uint32 { return checkSum(parts...) }

// FindCgroup returns the cgroup that is found among mounts.
func FindCgroup(mounts, pins string) (string, error) {
	p, err := places{pins: pins}.find(mounts)
	if err != nil {
		return "", err
	}
	return p.cgroup, nil
}

// Connected returns how many sockets are connected to an endpoint.
func Connected(root string) (int, error) { return connected(root) }

// Account is what was told of a route.
type Account = account

// Settle has it be told connections, bytes and packets.
func (a *Account) Settle(ended, live [5]uint64) [5]uint64 { return a.settle(ended, live) }

// LoseMap has writes of a map fail until what it returns is called.
func (d *Dataplane) LoseMap(name string) (find func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := map[string]**ebpf.Map{"endpoints": &d.kernel.Endpoints, "settings": &d.kernel.Settings}[name]
	was := *m
	lost, err := was.Clone()
	if err != nil {
		return nil, err
	}
	*m = lost
	return func() { _ = d.locked(func() error { *m = was; return nil }) }, lost.Close()
}

// CutStale has a program refuse what sockets send to endpoints that are gone.
func (d *Dataplane) CutStale() error { return d.locked(d.cutStale) }

// Looks reports whether somebody is to look what to cut.
func (d *Dataplane) Looks() bool { return len(d.look) > 0 }

// Listen tells of changes of addresses and routes, which come by a file descriptor.
func (d *Dataplane) Listen(ctx context.Context, changed chan struct{}) { d.listen(ctx, changed) }

// News is that descriptor.
func (d *Dataplane) News() int { return d.news.GetFd() }

// AnswerAll answers questions by way of a reader, which has that of the kernel.
func (d *Dataplane) AnswerAll(ctx context.Context, by func(Questions) Questions) error {
	all, err := ringbuf.NewReader(d.kernel.Questions)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = all.Close() })
	d.answerAll(ctx, by(all))
	return nil
}

// Questions is what programs ask.
type Questions = questions
