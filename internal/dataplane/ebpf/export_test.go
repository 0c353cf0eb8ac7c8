package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
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

// Layout describes the pinned maps, which the next daemon takes over: one line for each.
func Layout() (string, error) {
	spec, err := readObject()
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

// Translated reports whether the maps say that a socket was translated.
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
				return binary.NativeEndian.Uint32(sockets) > 0, nil // the number of pairs
			}
			return slices.Max(sockets[:48]) > 0, nil // the pair is not zero
		}
	}
	return false, nil
}

// Map returns a map by name.
func (d *Dataplane) Map(name string) *ebpf.Map {
	return map[string]*ebpf.Map{
		"services": d.kernel.Services, "endpoints": d.kernel.Endpoints, "members": d.kernel.Members,
		"spaces": d.kernel.Spaces, "node_addrs": d.kernel.NodeAddrs, "tcp_sockets": d.kernel.TCP,
		"generation": d.kernel.Generation,
	}[name]
}

// WriteMaps calls f, which writes to maps, as the mode itself does: with a new generation.
func (d *Dataplane) WriteMaps(f func() error) error { return d.kernel.writeMaps(f) }

// FreezeGeneration makes the generation a constant, so that programs never drop what they
// have cached. It does nothing if that was done before.
func (d *Dataplane) FreezeGeneration() error {
	return d.locked(func() error {
		var now uint64
		if err := d.kernel.Generation.Lookup(uint32(0), &now); err != nil || now == 1 {
			return err
		}
		private, err := unix.Mmap(-1, 0, len(d.kernel.generationMem), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return err
		}
		err = unix.Munmap(d.kernel.generationMem)
		d.kernel.generationMem = private
		return errors.Join(err, d.kernel.Generation.Put(uint32(0), uint64(1)))
	})
}

// RenewLease renews the lease, as Run does periodically.
func (d *Dataplane) RenewLease() error {
	return d.locked(func() error { return d.setLease(lease) })
}

// OpenWithLimits opens a dataplane whose maps have room for fewer entries.
func OpenWithLimits(ctx context.Context, s mode.Settings, limits map[string]uint32) (*Dataplane, error) {
	return open(ctx, s, limits)
}

// Cutting reports whether UDP sockets are being cut.
func (d *Dataplane) Cutting() bool { return d.cutting() }

// ExpireLease makes the lease one that has expired long ago.
func (d *Dataplane) ExpireLease() error {
	return d.locked(func() error { return d.kernel.writeSettings(d.nodeCookie, 1) })
}

// LeaseLeft returns the time until the lease expires; negative if it has.
func (d *Dataplane) LeaseLeft() (time.Duration, error) {
	var s settings
	now, err := monotonicNow()
	err = errors.Join(err, d.kernel.Settings.Lookup(uint32(0), &s))
	return time.Duration(binary.NativeEndian.Uint64(s[8:]) - now), err
}

// Writes returns how many entries of rows were written since the last call.
func (d *Dataplane) Writes() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.writes
	d.writes = 0
	return n
}

// Reads returns how many entries of rows were read since the last call.
func (d *Dataplane) Reads() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.reads
	d.reads = 0
	return n
}

// Checksum returns the checksum that values carry.
func Checksum(parts ...[]byte) uint32 { return checksum(parts...) }

// FindCgroup returns the cgroup that is found in mountinfo.
func FindCgroup(mountinfo, pins string) (string, error) {
	p, err := paths{pins: pins}.resolve(mountinfo)
	if err != nil {
		return "", err
	}
	return p.cgroup, nil
}

// CountConnected returns how many translated sockets are connected to an endpoint.
func CountConnected(root string) (int, error) { return countConnected(root) }

// TrafficTotal is a total of what the kernel counts.
type TrafficTotal = trafficTotal

// Update updates the total after a read.
func (t *TrafficTotal) Update(ended, live [5]uint64) [5]uint64 { return t.update(ended, live) }

// BreakMap makes writes to a map fail until repair is called.
func (d *Dataplane) BreakMap(name string) (repair func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := map[string]**ebpf.Map{"endpoints": &d.kernel.Endpoints, "settings": &d.kernel.Settings}[name]
	was := *m
	closed, err := was.Clone()
	if err != nil {
		return nil, err
	}
	*m = closed
	return func() { _ = d.locked(func() error { *m = was; return nil }) }, closed.Close()
}

// CutStale looks for UDP sockets whose endpoint is gone, and cuts them.
func (d *Dataplane) CutStale() error { return d.locked(d.cutStale) }

// CheckStalePending reports whether Run has yet to look for such sockets.
func (d *Dataplane) CheckStalePending() bool { return len(d.checkStale) > 0 }

// WatchHost notifies changed when addresses or routes change.
func (d *Dataplane) WatchHost(ctx context.Context, changed chan struct{}) { d.watchHost(ctx, changed) }

// HostEventsFD returns the socket that WatchHost reads.
func (d *Dataplane) HostEventsFD() int { return d.hostEvents.GetFd() }

// AnswerQuestions answers the questions of programs until ctx ends. Wrap may replace the
// reader of the ring buffer.
func (d *Dataplane) AnswerQuestions(ctx context.Context, wrap func(QuestionReader) QuestionReader) error {
	all, err := ringbuf.NewReader(d.kernel.Questions)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = all.Close() })
	d.answerQuestions(ctx, wrap(all))
	return nil
}

// QuestionReader reads the questions of programs.
type QuestionReader = questionReader

// Excepted returns the node's addresses that the rules exclude from untracking.
func (d *Dataplane) Excepted() []netip.Addr {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.untracked().Except
}
