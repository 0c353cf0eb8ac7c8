package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/nft"
	"sluice/internal/statusapi"
)

// traceQuiet is after how much silence a packet has met its last rule.
const traceQuiet = 300 * time.Millisecond

// follow follows the first packet that is as explained through all rules. A packet
// of this node it sends itself.
func (o *explainOptions) follow(ctx context.Context, says io.Writer, e *statusapi.Explanation) (*statusapi.Trace, error) {
	dst, err := netip.ParseAddrPort(e.Packet.To)
	if err != nil {
		return nil, errors.New("--trace: there is no address to send a packet to")
	}
	ctx, cancel := context.WithTimeout(ctx, o.trace)
	defer cancel()
	begun, src := func() { go touch(ctx, e.Packet.Protocol, dst) }, netip.Addr{}
	switch {
	case e.Packet.Origin == "this node" && e.Packet.Protocol == "SCTP":
		return nil, errors.New("--trace: only TCP and UDP are sent from this node: name a client with --from, and let it connect")
	case e.Packet.Origin != "this node":
		if src, err = netip.ParseAddr(e.Packet.From); err != nil {
			return nil, errors.New("--trace: name the client with --from")
		}
		begun = func() {
			fmt.Fprintf(says, "Waiting for a packet from %v to %v, for %v: let the client connect now.\n", src, dst, o.trace)
		}
	}
	number := map[string]uint8{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP, "SCTP": unix.IPPROTO_SCTP}[e.Packet.Protocol]
	steps, err := traceOne(ctx, cancel, nft.Traced{Protocol: number, Src: src, Dst: dst}, begun)
	switch {
	case errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("--trace: no permission to use nf_tables, try sudo: %w", err)
	case err != nil:
		return nil, fmt.Errorf("--trace: %w", err)
	}
	t := &statusapi.Trace{}
	for _, s := range steps {
		step := statusapi.TraceStep{
			Chain: fmt.Sprintf("%s %s %s", families[s.Family], s.Table, s.Chain), Handle: s.Handle, Verdict: s.Verdict,
			Ours: strings.HasPrefix(s.Table, "sluice") || strings.HasPrefix(s.Chain, "KUBE-"),
		}
		t.Steps = append(t.Steps, step)
		if s.Drops {
			t.DroppedBy = &step
		}
	}
	names := untraceable(dst.Addr())
	t.Bypassed = e.Reason == statusapi.Forwarded && number == unix.IPPROTO_TCP && names == "" && // of others a later packet may be followed
		len(steps) > 0 && !slices.ContainsFunc(steps, choosesEndpoint) && (t.DroppedBy == nil || t.DroppedBy.Ours)
	for i, s := range t.Steps {
		if t.Bypassed && !s.Ours {
			t.Steps[i].Rule = ruleText(ctx, s)
		}
	}
	if t.DroppedBy != nil { // by the last one
		last := &t.Steps[len(t.Steps)-1]
		last.Rule = ruleText(ctx, *last)
		*t.DroppedBy = *last
	}
	if len(t.Steps) == 0 {
		t.Unknown = fmt.Sprintf("no such packet came within %v", o.trace)
	}
	if names != "" {
		t.Unknown = strings.TrimPrefix(t.Unknown+"; rules of iptables-legacy cannot be followed, and there are some: "+names, "; ")
	}
	return t, nil
}

// choosesEndpoint reports whether a step is where a new connection gets its endpoint;
// IPVS does so unseen.
func choosesEndpoint(s nft.TraceStep) bool {
	return s.Table == "sluice-ipvs" || s.Table == "nat" && s.Chain == "KUBE-SERVICES" || strings.HasPrefix(s.Table, "sluice") && s.Chain == "services"
}

// families are the names of families of tables that packets pass.
var families = map[nft.Family]string{1: "inet", nft.IP: "ip", nft.IP6: "ip6", 5: "netdev", 7: "bridge"}

// touch sends a first packet from this node.
func touch(ctx context.Context, protocol string, dst netip.AddrPort) {
	var d net.Dialer
	c, err := d.DialContext(ctx, strings.ToLower(protocol), dst.String())
	if err != nil {
		return // the trace tells
	}
	_, _ = c.Write([]byte{0})
	_ = c.Close()
}

// traceOne follows the first packet of those that are traced, and calls cancel when it
// has met its last rule. Only a packet that is seen from the rule that marks it is
// followed: of one that was on its way when the trace began nobody could say what it
// passed, and others may trace packets of theirs.
func traceOne(ctx context.Context, cancel func(), what nft.Traced, begun func()) (steps []nft.TraceStep, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	var packet uint32
	quiet := time.AfterFunc(math.MaxInt64, cancel)
	defer quiet.Stop()
	err = conn.Trace(ctx, what, begun, func(s nft.TraceStep) {
		switch {
		case packet == 0 && s.Table == nft.TraceTable:
			packet = s.Packet
			quiet.Reset(traceQuiet)
		case packet != 0 && s.Packet == packet && s.Table != nft.TraceTable:
			steps = append(steps, s)
			if quiet.Reset(traceQuiet); s.Drops {
				cancel()
			}
		}
	})
	return steps, err
}

// ruleText returns a rule as the nft program lists it, if there is one.
func ruleText(ctx context.Context, s statusapi.TraceStep) string {
	if s.Handle == 0 {
		return "the chain's policy is " + s.Verdict
	}
	handle := strconv.FormatUint(s.Handle, 10)
	out, err := exec.CommandContext(context.WithoutCancel(ctx), "nft", append([]string{"-a", "--", "list", "chain"}, strings.Fields(s.Chain)...)...).Output()
	if err == nil {
		for line := range strings.Lines(string(out)) {
			if text, ok := strings.CutSuffix(strings.TrimSpace(line), " # handle "+handle); ok {
				return text
			}
		}
	}
	return "rule with handle " + handle
}

// untraceable returns the tables of iptables-legacy, whose rules have no trace.
func untraceable(a netip.Addr) string {
	file := "/proc/net/ip_tables_names"
	if a.Is6() {
		file = "/proc/net/ip6_tables_names"
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "" // the kernel has none
	}
	return strings.Join(strings.Fields(string(text)), ", ")
}
