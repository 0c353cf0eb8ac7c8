package iptables

import (
	"context"
	"errors"

	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// Packets is what rules of ours have matched, in both families together.
type Packets struct {
	InvalidDropped    uint64 // the state of their connection was invalid
	LocalhostAccepted uint64 // first packets of connections to NodePorts on loopback addresses
}

// The comments of the rules whose packets are counted.
const (
	invalidDropped    = "kubernetes packets of invalid connections"
	localhostAccepted = "kubernetes nodeports on loopback addresses"
)

// Packets reads the counters of our rules. What cannot be read is what it was
// before. Anybody may ask at any time.
func (d *Dataplane) Packets(ctx context.Context) (sum Packets, err error) {
	d.packets.Lock()
	defer d.packets.Unlock()
	for _, f := range d.families {
		err = errors.Join(err, f.invalid.read(ctx, f.programs, chainRef{filter, kubeForward}, invalidDropped))
		sum.InvalidDropped += f.invalid.before + f.invalid.now
		if f.Family == proxy.IPv4 && d.localnet.InUse() { // else there is no such rule
			err = errors.Join(err, f.localhost.read(ctx, f.programs, chainRef{nat, kubePost}, localhostAccepted))
		}
		sum.LocalhostAccepted += f.localhost.before + f.localhost.now
	}
	return sum, err
}

// packetCount is what a rule has counted. One that is written again begins at
// zero; the sum goes on.
type packetCount struct {
	now, before uint64
}

func (c *packetCount) read(ctx context.Context, programs ipt.Interface, p chainRef, comment string) error {
	n, err := programs.Packets(ctx, p.table, p.chain, comment)
	if err != nil {
		return err
	}
	if n < c.now {
		c.before += c.now
	}
	c.now = n
	return nil
}
