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

// traceQuiet is the time without a trace message after which a packet is assumed to
// have passed its last rule.
const traceQuiet = 300 * time.Millisecond

// runTrace traces the first packet that matches the explanation through all rules.
// If the client is this node, it sends the packet; otherwise it asks on stderr for
// the client to connect.
func (o *explainOptions) runTrace(ctx context.Context, stderr io.Writer, e *statusapi.Explanation) (*statusapi.Trace, error) {
	dst, err := netip.ParseAddrPort(e.Packet.To)
	if err != nil {
		return nil, errors.New("--trace: there is no address to send a packet to")
	}
	ctx, cancel := context.WithTimeout(ctx, o.trace)
	defer cancel()
	started, src := func() { go sendFirstPacket(ctx, e.Packet.Protocol, dst) }, netip.Addr{}
	switch {
	case e.Packet.Origin == "this node" && e.Packet.Protocol == "SCTP":
		return nil, errors.New("--trace: this node can send only TCP and UDP: name a client with --from, and let it connect")
	case e.Packet.Origin != "this node":
		if src, err = netip.ParseAddr(e.Packet.From); err != nil {
			return nil, errors.New("--trace: name the client with --from")
		}
		started = func() {
			fmt.Fprintf(stderr, "Waiting for a packet from %v to %v, for %v: let the client connect now.\n", src, dst, o.trace)
		}
	}
	number := map[string]uint8{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP, "SCTP": unix.IPPROTO_SCTP}[e.Packet.Protocol]
	steps, err := tracePacket(ctx, cancel, nft.Traced{Protocol: number, Src: src, Dst: dst}, started)
	switch {
	case errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("--trace: no permission to use nf_tables: %w; run it as root", err)
	case err != nil:
		return nil, fmt.Errorf("--trace: %w", err)
	}
	t := &statusapi.Trace{}
	for _, s := range steps {
		if s.Dst.IsValid() && s.Dst != dst {
			t.Endpoint = s.Dst.String()
		}
		step := statusapi.TraceStep{
			Chain: fmt.Sprintf("%s %s %s", families[s.Family], s.Table, s.Chain), Handle: s.Handle, Verdict: s.Verdict,
			Ours: strings.HasPrefix(s.Table, "sluice") || strings.HasPrefix(s.Chain, "KUBE-"),
		}
		t.Steps = append(t.Steps, step)
		if s.Drops {
			t.DroppedBy = &step
		}
	}
	legacy := legacyTables(dst.Addr())
	// With other protocols than TCP, the traced packet may be a later one of a connection.
	t.Bypassed = e.Reason == statusapi.Forwarded && number == unix.IPPROTO_TCP && legacy == "" && len(steps) > 0 &&
		!slices.ContainsFunc(steps, choosesEndpoint) && (t.DroppedBy == nil || t.DroppedBy.Ours)
	for i, s := range t.Steps {
		if t.Bypassed && !s.Ours {
			t.Steps[i].Rule = ruleText(ctx, s)
		}
	}
	if t.DroppedBy != nil { // it is the last step
		last := &t.Steps[len(t.Steps)-1]
		last.Rule = ruleText(ctx, *last)
		*t.DroppedBy = *last
	}
	if len(t.Steps) == 0 {
		t.Unknown = fmt.Sprintf("no such packet came within %v", o.trace)
	}
	if legacy != "" {
		t.Unknown = strings.TrimPrefix(t.Unknown+"; there are iptables-legacy rules, which cannot be traced, in tables "+legacy, "; ")
	}
	return t, nil
}

// choosesEndpoint reports whether a new connection gets its endpoint at a step. IPVS
// chooses endpoints without a trace, so every step in its table counts.
func choosesEndpoint(s nft.TraceStep) bool {
	return s.Table == "sluice-ipvs" || s.Table == "nat" && s.Chain == "KUBE-SERVICES" || strings.HasPrefix(s.Table, "sluice") && s.Chain == "services"
}

// families are nft's names of table families.
var families = map[nft.Family]string{1: "inet", nft.IP: "ip", nft.IP6: "ip6", 5: "netdev", 7: "bridge"}

// sendFirstPacket sends the first packet of a connection from this node.
func sendFirstPacket(ctx context.Context, protocol string, dst netip.AddrPort) {
	var d net.Dialer
	c, err := d.DialContext(ctx, strings.ToLower(protocol), dst.String())
	if err != nil {
		return // the trace shows why
	}
	_, _ = c.Write([]byte{0})
	_ = c.Close()
}

// tracePacket traces the first packet that matches what, and calls cancel when it
// has passed its last rule. It calls started when packets are being traced. A packet
// counts only from the rule that enables its trace: one that was already on its way
// would lack steps, and other programs may trace packets, too.
func tracePacket(ctx context.Context, cancel func(), what nft.Traced, started func()) (steps []nft.TraceStep, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	var packet uint32
	quiet := time.AfterFunc(math.MaxInt64, cancel)
	defer quiet.Stop()
	err = conn.Trace(ctx, what, started, func(s nft.TraceStep) {
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

// ruleText returns a rule as the nft program lists it, or its handle if that does
// not work.
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

// legacyTables returns the tables of iptables-legacy, whose rules are not traced.
func legacyTables(a netip.Addr) string {
	file := "/proc/net/ip_tables_names"
	if a.Is6() {
		file = "/proc/net/ip6_tables_names"
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "" // the kernel does not have iptables-legacy
	}
	return strings.Join(strings.Fields(string(text)), ", ")
}
