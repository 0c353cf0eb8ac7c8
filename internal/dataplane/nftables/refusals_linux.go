package nftables

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// Names of the chains that refuse packets, and of the sets that count them there.
const (
	refusedNoEndpoints = "refused-no-endpoints"
	refusedNoLocal     = "refused-no-local-endpoint"
	refusedSource      = "refused-source-range"
)

const (
	// refusalsFor is how long a destination is counted after its last refused packet.
	// Destinations are only addresses and ports of Services, or of NodePorts.
	refusalsFor = time.Hour
	// refusalsSize is the maximum number of destinations. Packets to further ones are refused
	// but not counted.
	refusalsSize = 1 << 16
)

var refusalReasons = [...]struct {
	proxy.Reason
	chain, comment string
}{
	{proxy.NoEndpoints, refusedNoEndpoints, "no endpoint anywhere"},
	{proxy.NoLocalEndpoint, refusedNoLocal, "no endpoint for this node"},
	{proxy.SourceRange, refusedSource, "not an allowed client"},
}

// refusalChains returns the chains that count and refuse packets. Counting and refusing
// are separate rules, because a rule ends if the set is full.
func (t *table) refusalChains() (all []*chain) {
	for i, why := range refusalReasons {
		end := t.rule().drop()
		if why.Reason == proxy.NoEndpoints {
			end = t.rule().goTo(refuse)
		}
		all = append(all, t.chain(why.chain, t.rule().countIn(t.refusals[i]).comment("count"), end.comment(why.comment)))
	}
	return all
}

// countIn counts the packet in s by its destination.
func (r *rule) countIn(s *nft.Set) *rule {
	return r.daddr().protocol().port().add(&expr.Dynset{
		SrcRegKey: firstRegister, SetName: s.Name, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: refusalsFor,
		Exprs: []expr.Any{&expr.Counter{}},
	}).resetRegisters()
}

// Traffic implements [proxy.Metered]. It yields only refused packets; all other traffic is
// known to connection tracking.
func (d *Dataplane) Traffic(ctx context.Context, yield func(proxy.Sample)) error {
	if d.reader == nil {
		return nil
	}
	var errs []error
	for _, t := range d.tables {
		for i, why := range refusalReasons {
			counted, err := d.reader.conn.Counters(ctx, t.refusals[i])
			if err != nil && !errors.Is(err, unix.ENOENT) { // before the first sync there is no table
				errs = append(errs, err)
				continue
			}
			for key, packets := range counted {
				s := proxy.Sample{Refused: why.Reason, Traffic: proxy.Traffic{Packets: [2]uint64{proxy.In: packets}}}
				s.Protocol, s.Frontend = t.parseFrontendKey(key)
				yield(s)
			}
		}
	}
	return errors.Join(errs...)
}

// parseFrontendKey parses a key that consists of an address, a protocol and a port. It
// returns zero values if the key has another length.
func (t *table) parseFrontendKey(key string) (proxy.Protocol, netip.AddrPort) {
	n := t.family.Bits() / 8
	if len(key) != n+8 {
		return 0, netip.AddrPort{}
	}
	a, _ := netip.AddrFromSlice([]byte(key[:n]))
	return proxy.Protocol(key[n]), netip.AddrPortFrom(a, uint16(key[n+4])<<8|uint16(key[n+5]))
}
