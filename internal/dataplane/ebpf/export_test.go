package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/cilium/ebpf"

	"sluice/internal/dataplane/mode"
)

// Sockets returns the maps of sockets that were translated.
func (d *Dataplane) Sockets() []*ebpf.Map { return []*ebpf.Map{d.kernel.TCP, d.kernel.UDP} }

// Map returns one of the maps that rows are written to.
func (d *Dataplane) Map(name string) *ebpf.Map {
	return map[string]*ebpf.Map{
		"services": d.kernel.Services, "endpoints": d.kernel.Endpoints, "members": d.kernel.Members,
		"spaces": d.kernel.Spaces, "node_addrs": d.kernel.NodeAddrs,
	}[name]
}

// OpenWithLimits opens a dataplane whose maps have room for fewer entries.
func OpenWithLimits(ctx context.Context, s mode.Settings, limits map[string]uint32) (*Dataplane, error) {
	return open(ctx, s, limits)
}

// Cuts reports whether a program looks for sockets that are to be cut.
func (d *Dataplane) Cuts() bool { return d.isCutting() }

// Expire ends the permission of programs, as time does when no daemon is there.
func (d *Dataplane) Expire() error { return d.kernel.allow(d.node, 1) }

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
