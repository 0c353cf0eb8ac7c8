package ebpf

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"sluice/internal/conformance"
	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/differ"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/netfilter"
	"sluice/internal/kernel/nft/nfttest"
	"sluice/internal/proxy"
)

// evaluated is a dataplane whose rules and map entries are evaluated in memory, the entries as the
// programs read them.
type evaluated struct {
	*Dataplane
	fake    *nfttest.Fake
	entries map[id]value
}

func newEvaluated() *evaluated {
	e := &evaluated{&Dataplane{host: &host{}, rowIDs: map[proxy.PortKey]uint32{}}, nfttest.NewFake(), map[id]value{}}
	s := mode.Settings{MasqueradeBit: 14}
	e.Dataplane.Dataplane = overlay(s, nil).New(e.fake, s)
	m := e.differMode()
	m.Read, m.Difference = nil, nil
	m.List = func(_ context.Context, _ *proxy.State, have func(id, value)) (func() error, bool, error) {
		for k, v := range e.entries {
			have(k, v)
		}
		return nil, false, nil
	}
	m.Write = func(_ context.Context, some []*change) error {
		for _, c := range some {
			if c.Has {
				e.entries[c.ID] = c.New
			} else {
				delete(e.entries, c.ID)
			}
		}
		return nil
	}
	e.differ = differ.New(m)
	return e
}

// Sync writes the entries in memory, and the rules.
func (e *evaluated) Sync(ctx context.Context, want *proxy.State) (proxy.Refused, error) {
	e.cidrs, e.nextCIDRs = want.CIDRs, want.CIDRs
	if refused, err := e.differ.Sync(ctx, want); err != nil || len(refused) > 0 {
		return nil, fmt.Errorf("sync maps: %v, %w", refused, err)
	}
	return e.Dataplane.Dataplane.Sync(ctx, want)
}

// Apply writes the entries in memory, and the rules.
func (e *evaluated) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	if changed.Node || changed.CIDRs {
		e.cidrs, e.nextCIDRs = want.CIDRs, want.CIDRs
		e.differ.Forget()
		return e.Sync(ctx, want)
	}
	if refused, err := e.differ.Apply(ctx, want, changed); err != nil || len(refused) > 0 {
		return nil, fmt.Errorf("write maps: %v, %w", refused, err)
	}
	return e.Dataplane.Dataplane.Apply(ctx, want, changed)
}

// Objects implements [conformance.ModelRun] with the frontends; package nftables compares rules.
// Numbers of rows may differ.
func (e *evaluated) Objects() (out []string) {
	for k, v := range e.entries {
		if k.table == services {
			out = append(out, fmt.Sprintf("%x lists %x actions %x", k.key, v[4:12], v[12:16]))
		}
	}
	slices.Sort(out)
	return append(out, fmt.Sprint(len(e.entries)))
}

func (e *evaluated) find(t table, key []byte) (v value, ok bool) {
	k, _ := entry(t, key, nil)
	v, ok = e.entries[k]
	return v, ok
}

// Judge implements [conformance.ModelRun].
func (e *evaluated) Judge(s *proxy.State, p proxy.Packet, want conformance.Expect) error {
	if err := conformance.Evaluate(netfilter.Node{Rules: e.fake}, p, want); err != nil {
		return err
	}
	if !ownSource(p) {
		return nil
	}
	share, to := conformance.TranslatedShare(s, p), e.translate(s, p)
	if fit := int(share*float64(len(want.To)) + 0.5); len(to) != fit {
		return fmt.Errorf("programs translate to %v; want %d of %v", to, fit, want)
	}
	for a := range to {
		if masquerade, ok := want.To[a]; !ok || masquerade != (p.In == "") {
			return fmt.Errorf("programs translate to %v; want %v", a, want)
		}
	}
	return nil
}

// ownSource reports whether a packet has the source that the kernel would choose: only sockets
// that are not bound to another are judged.
func ownSource(p proxy.Packet) bool {
	switch {
	case p.In == "" && p.DstLocal:
		return p.Src == p.Dst.Addr()
	case p.In == "":
		return slices.Contains([]netip.Addr{netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("2001:db8::1")}, p.Src)
	default:
		return p.In == lab.Bridge && !p.Src.IsLoopback()
	}
}

// translate returns to which endpoints the programs translate a new connection of a socket.
func (e *evaluated) translate(s *proxy.State, p proxy.Packet) map[netip.AddrPort]bool {
	out := map[netip.AddrPort]bool{}
	f := proxy.Frontend{Addr: p.Dst}
	key := makeFrontendKey(p.Protocol, f)
	v, ok := e.find(services, key[:])
	if ok && p.DstLocal {
		return out
	}
	if !ok {
		takes := p.DstLocal && s.Node.TakesNodePorts(p.Dst.Addr())
		f.Kind = proxy.NodePort
		key = makeFrontendKey(p.Protocol, f)
		if v, ok = e.find(services, key[:]); !ok || !takes || p.Dst.Addr().IsLoopback() && p.In != "" {
			return out
		}
		if p.In == "" && proxy.Contains(s.Node.LocalPods.Sources, p.Dst.Addr()) {
			return out
		}
	}
	action := v[12+s.Node.Origin(p)]
	if action&actionTranslate == 0 {
		return out
	}
	scope := proxy.Scope(action & actionLocalList >> 1)
	for i := range int(binary.NativeEndian.Uint32(v[4+4*scope:])) {
		slot := makeSlotKey(binary.NativeEndian.Uint32(v[:]), scope, i)
		x, ok := e.find(endpoints, slot[:])
		if to := addrPort(x[:], 0, 16); ok && (p.In == "" || to.Addr() != p.Src) && !e.handledByRules(s, p.Protocol, x, to) {
			out[to] = true
		}
	}
	return out
}

// handledByRules reports whether the rules would handle packets to the endpoint itself.
func (e *evaluated) handledByRules(s *proxy.State, p proxy.Protocol, x value, to netip.AddrPort) bool {
	flags := binary.NativeEndian.Uint16(x[18:])
	key := makeFrontendKey(p, proxy.Frontend{Addr: to})
	if _, exact := e.find(services, key[:]); exact || flags&endpointInServiceRange != 0 {
		return true
	}
	key = makeFrontendKey(p, proxy.Frontend{Kind: proxy.NodePort, Addr: to})
	_, nodePort := e.find(services, key[:])
	return flags&endpointMayBeLocal != 0 && nodePort && slices.Contains(lab.Config{}.LocalAddrs(), to.Addr()) && s.Node.TakesNodePorts(to.Addr())
}

var model = conformance.Model{Mode: "nftables", Open: func() conformance.ModelRun { return newEvaluated() }}

// TestModel evaluates rules and map entries for the whole packet table, without a kernel.
func TestModel(t *testing.T) { conformance.RunModel(t, model) }

// TestRandomModel does so for random states and packets.
func TestRandomModel(t *testing.T) { conformance.RunRandomModel(t, model, 1, 100) }

// TestPolicyModel does so for every combination that policy depends on.
func TestPolicyModel(t *testing.T) { conformance.RunPolicyModel(t, model) }
