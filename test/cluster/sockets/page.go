package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// atLeast is what is promised of mode ebpf, as a part of a direct connection's speed, and
// untrackedAtLeast of new connections from a pod that are not tracked.
const atLeast, untrackedAtLeast = 0.98, 1.05

const preamble = `# Mode ebpf beside mode nftables and kube-proxy

Written by ` + "`make bench-ebpf`" + `: %s, Linux %s, %d CPUs, %s. All ways are in one run, by turns.

`

func head() string {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease") // for the record only
	return fmt.Sprintf(preamble, runtime.Version(), strings.TrimSpace(string(release)), runtime.NumCPU(), time.Now().UTC().Format("2006-01-02"))
}

const speedText = `## Speed

Through a ClusterIP with one endpoint, a pod of the same node, against a direct connection to that pod on a node with our rules: how many
times as fast (above 1: faster). Client and server share one processor, before all other work on it; %d rounds of %d each, and of the rounds the
one that a tenth is faster than. Each way has a node of its own, kube-proxy's two share one. Two nodes that are alike differ by up to 2 %%, so all are made anew %d times, and
the figure is the median of those. A closed TCP connection is reset, so that ports suffice. Direct connections pass the node, which tracks them unless the column says otherwise.

| from | what | direct | %s |
|---|---|--:|%s
`

// speedTable compares all other ways with the first.
func speedTable(all []way, speeds []*speed) string {
	var b, names, lines strings.Builder
	for _, w := range all[1:] {
		fmt.Fprintf(&names, "%s | ", w.name)
		lines.WriteString("--:|")
	}
	fmt.Fprintf(&b, speedText, *rounds / *series, *steps, len(speeds), names.String()+"promise", lines.String()+"---|")
	for origin, name := range originNames {
		for i, u := range uses {
			var direct []time.Duration
			against := map[string][]float64{}
			for _, s := range speeds {
				took := s[origin][i]
				first := took[all[0].name].tenth()
				direct = append(direct, first)
				for _, w := range all[1:] {
					against[w.name] = append(against[w.name], float64(first)/float64(took[w.name].tenth()))
				}
			}
			fmt.Fprintf(&b, "| %s | %s | %.1f µs |", name, u.name, float64(median(direct))/1e3)
			ratios := map[string]float64{}
			for _, w := range all[1:] {
				ratios[w.name] = median(against[w.name])
				fmt.Fprintf(&b, " %.3f |", ratios[w.name])
			}
			fmt.Fprintf(&b, " %s |\n", kept(ratios, name == "pod" && u.fresh))
		}
	}
	return b.String()
}

// kept says which promises hold.
func kept(ratios map[string]float64, newFromPod bool) string {
	var broken []string
	if newFromPod && ratios[notTracked] < untrackedAtLeast {
		broken = append(broken, fmt.Sprintf("not tracked at least %.2f", untrackedAtLeast))
	}
	if ratios["ebpf"] < atLeast {
		broken = append(broken, fmt.Sprintf("at least %.2f", atLeast))
	}
	for _, other := range []string{"nftables", "kube-proxy nftables"} {
		if r, ok := ratios[other]; ok && ratios["ebpf"] < r {
			broken = append(broken, "ahead of "+other)
		}
	}
	if broken == nil {
		return "holds"
	}
	return "**does not hold**: " + strings.Join(broken, ", ")
}

const stormText = `
## Two DNS questions at once

Pods ask a UDP Service with %d endpoints for A and AAAA from one new socket, both at the same moment on two processors. A
question is lost if no answer from the Service's address comes within %v. Conntrack of the node counts races, where it finds a way
out for the second packet, and insert_failed, where it drops it.

| sockets | way | questions | lost | races | insert_failed |
|---|---|--:|--:|--:|--:|
`

func stormTable(all []way, found map[bool]map[string]*storm) string {
	var b strings.Builder
	fmt.Fprintf(&b, stormText, serverCount, patience)
	for _, connected := range []bool{true, false} {
		name := map[bool]string{true: "connected", false: "not connected"}[connected]
		for _, w := range all {
			if s := found[connected][w.name]; s != nil {
				fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d |\n", name, w.name, s.asked, s.lost, s.races, s.insertFailed)
			}
		}
	}
	return b.String()
}
