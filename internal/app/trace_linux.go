package app

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/nft"
	"sluice/internal/statusapi"
)

// traceOne follows the first packet of those that are traced, and calls cancel when it
// has met its last rule.
func traceOne(ctx context.Context, cancel func(), what traced, begun func()) (steps []tracedStep, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, traceError(err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	number := map[string]uint8{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP, "SCTP": unix.IPPROTO_SCTP}[what.protocol]
	var packet uint32
	var quiet *time.Timer
	err = conn.Trace(ctx, nft.Traced{Protocol: number, Src: what.src, Dst: what.dst}, begun, func(s nft.TraceStep) {
		if quiet == nil {
			packet, quiet = s.Packet, time.AfterFunc(traceQuiet, cancel)
		}
		if s.Packet != packet || s.Table == nft.TraceTable {
			return
		}
		quiet.Reset(traceQuiet)
		steps = append(steps, stepOf(s))
		if s.Drops {
			cancel()
		}
	})
	if err != nil {
		return nil, traceError(err)
	}
	return steps, nil
}

func traceError(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("--trace: no permission to use nf_tables, try sudo: %w", err)
	}
	return fmt.Errorf("--trace: %w", err)
}

// families are the names of families of tables that packets pass.
var families = map[nft.Family]string{1: "inet", nft.IP: "ip", nft.IP6: "ip6", 5: "netdev", 7: "bridge"}

func stepOf(s nft.TraceStep) tracedStep {
	return tracedStep{statusapi.TraceStep{
		Chain: fmt.Sprintf("%s %s %s", families[s.Family], s.Table, s.Chain), Handle: s.Handle, Verdict: s.Verdict,
		Ours: strings.HasPrefix(s.Table, "sluice") || strings.HasPrefix(s.Chain, "KUBE-"),
	}, s.Drops}
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
