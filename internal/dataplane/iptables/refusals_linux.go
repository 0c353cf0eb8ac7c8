package iptables

import (
	"context"
	"errors"
	"net/netip"
	"strconv"
	"strings"

	"sluice/internal/proxy"
)

// What comments say of frontends without an endpoint.
const (
	noEndpoints      = " has no endpoints"
	noLocalEndpoints = " has no local endpoints"
)

// Traffic yields the packets that were refused, which rules count. All else
// connection tracking knows.
func (d *Dataplane) Traffic(ctx context.Context, yield func(proxy.Sample)) error {
	var errs []error
	for _, f := range d.families {
		sum := map[proxy.Sample]uint64{} // a frontend may have several rules
		errs = append(errs, f.programs.Counters(ctx, filter, func(chain, rule string, packets uint64) {
			if s, ok := f.refusedBy(chain, rule); ok {
				sum[s] += packets
			}
		}))
		for s, packets := range sum {
			s.Packets[proxy.In] = packets
			yield(s)
		}
	}
	return errors.Join(errs...)
}

// refusedBy reads a rule that refuses packets to a frontend.
func (f *family) refusedBy(chain, rule string) (s proxy.Sample, ok bool) {
	switch at := (chainRef{filter, chain}); {
	case at == restricted:
		s.Refused = proxy.SourceRange
	case at != emptyClusterIP && at != emptyExternal && at != nodePortFilter:
		return s, false
	case strings.Contains(rule, noEndpoints):
		s.Refused = proxy.NoEndpoints
	case strings.Contains(rule, noLocalEndpoints):
		s.Refused = proxy.NoLocalEndpoint
	default:
		return s, false
	}
	addr, port := f.Family.Unspecified(), uint64(0)
	words := strings.Fields(rule)
	for i := range len(words) - 1 {
		switch value := words[i+1]; words[i] {
		case "-d":
			if p, err := netip.ParsePrefix(value); err == nil && chain != nodePortFilter.chain {
				addr = p.Addr()
			}
		case "-p":
			s.Protocol = protocols[value]
		case "--dport":
			port, _ = strconv.ParseUint(value, 10, 16)
		}
	}
	s.Frontend = netip.AddrPortFrom(addr, uint16(port))
	return s, port != 0
}

// protocols are those that rules match, as they spell them.
var protocols = map[string]proxy.Protocol{"tcp": proxy.TCP, "udp": proxy.UDP, "sctp": proxy.SCTP}
