package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	kernel "github.com/cilium/ebpf"

	"sluice/internal/conformance/traffic"
	"sluice/internal/dataplane/ebpf"
	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// modes are what costs are compared of.
var modes = []struct {
	name string
	open func(context.Context, mode.Settings) (proxy.Dataplane, error)
}{
	{"nftables", mode.Opener(nftables.Alone.Open)},
	{"ebpf", mode.Opener(ebpf.Open)},
}

const endpointsPerService = 10

// service is Service number i; its first endpoint is number first.
func service(i, first int) *proxy.ServicePort {
	pod := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}) }
	pods := []netip.Addr{pod(first)}
	for e := 1; e < endpointsPerService; e++ {
		pods = append(pods, pod(i*16+e))
	}
	at := netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})
	sp := row(fmt.Sprint("svc-", i), proxy.TCP, netip.AddrPortFrom(at, 80), pods)
	for e := range sp.Cluster {
		sp.Cluster[e].Local = false
	}
	sp.Local = nil
	return sp
}

func services(n int) *proxy.State {
	s := proxy.NewState()
	s.Node = &proxy.Node{LocalPods: proxy.LocalTrafficDetector{Sources: []netip.Prefix{netip.MustParsePrefix("10.255.0.0/24")}}}
	for i := range n {
		sp := service(i, i*16)
		s.Rows[sp.Key] = sp
	}
	return s
}

// costs are by mode, in the order of modes.
type costs struct {
	open      [2][]time.Duration        // which loads the programs
	coldStart [2][]time.Duration        // at coldSize
	apply     [2][2][]time.Duration     // by size, as in applySizes
	memory    map[int]map[string]uint64 // of maps, by number of Services and name
}

const coldSize, coldRounds = 10_000, 21

var applySizes = [2]int{1_000, 30_000}

// measureCosts times writing.
func measureCosts(ctx context.Context, s mode.Settings) (*costs, error) {
	c := &costs{memory: map[int]map[string]uint64{}}
	cold := services(coldSize)
	for range coldRounds {
		for i, m := range modes {
			began := time.Now()
			err := onNode(ctx, s, m.open, func(d proxy.Dataplane, _ string) error {
				c.open[i] = append(c.open[i], time.Since(began))
				runtime.GC() // what the last one left is not its cost
				began := time.Now()
				err := proxytest.Sync(ctx, d, cold)
				c.coldStart[i] = append(c.coldStart[i], time.Since(began))
				return err
			})
			if err != nil {
				return nil, fmt.Errorf("cold start in mode %s: %w", m.name, err)
			}
		}
	}
	for i, m := range modes {
		// Both sizes are there at once, so that other work on the machine hits both.
		err := onNode(ctx, s, m.open, func(few proxy.Dataplane, fewPins string) error {
			return onNode(ctx, s, m.open, func(many proxy.Dataplane, manyPins string) error {
				return c.measureApply(ctx, i, [2]proxy.Dataplane{few, many}, [2]string{fewPins, manyPins})
			})
		})
		if err != nil {
			return nil, fmt.Errorf("change in mode %s: %w", m.name, err)
		}
	}
	return c, nil
}

// measureApply times changes of a mode at both sizes by turns.
func (c *costs) measureApply(ctx context.Context, mode int, at [2]proxy.Dataplane, pins [2]string) (err error) {
	for i, n := range applySizes {
		if err := proxytest.Sync(ctx, at[i], services(n)); err != nil {
			return err
		}
		if modes[mode].name == "ebpf" {
			if c.memory[n], err = mapMemory(pins[i]); err != nil {
				return err
			}
		}
	}
	for k := range 1_000 {
		for i, n := range applySizes {
			took, err := replaceEndpoint(ctx, at[i], k*7919%n, 1<<20+k)
			if err != nil {
				return err
			}
			c.apply[i][mode] = append(c.apply[i][mode], took)
		}
	}
	return nil
}

// onNode opens a dataplane in a network namespace of its own, for f to measure.
func onNode(ctx context.Context, s mode.Settings, open func(context.Context, mode.Settings) (proxy.Dataplane, error),
	f func(d proxy.Dataplane, pins string) error,
) (err error) {
	if s.EBPF.BPFRoot, err = os.MkdirTemp(s.EBPF.BPFRoot, "cost-"); err != nil {
		return err
	}
	n, err := traffic.New("cost", &traffic.Ports{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	return n.Do(func() error {
		d, err := open(ctx, s)
		if err != nil {
			return err
		}
		err = errors.Join(f(d, s.EBPF.BPFRoot), d.Close())
		_, failed := ebpf.Cleanup(ctx, s, nil)
		return errors.Join(err, failed)
	})
}

// replaceEndpoint replaces the first endpoint of a Service, and puts it back.
func replaceEndpoint(ctx context.Context, d proxy.Dataplane, i, by int) (time.Duration, error) {
	old, cur := service(i, i*16), service(i, by)
	began := time.Now()
	err := proxytest.Apply(ctx, d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: old, New: cur}}})
	took := time.Since(began)
	return took, errors.Join(err, proxytest.Apply(ctx, d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: cur, New: old}}}))
}

// mapMemory asks the kernel what pinned maps occupy.
func mapMemory(pins string) (map[string]uint64, error) {
	paths, err := filepath.Glob(filepath.Join(pins, "maps-*", "*"))
	out := map[string]uint64{}
	for _, p := range paths {
		m, err := kernel.LoadPinnedMap(p, nil)
		if err != nil {
			return nil, err
		}
		info, err := m.Info()
		if err = errors.Join(err, m.Close()); err != nil {
			return nil, err
		}
		bytes, _ := info.Memlock()
		out[filepath.Base(p)] = bytes
	}
	return out, err
}

const costText = `
## Cost

Of the rounds, medians. A replaced endpoint writes one entry of the maps for each list that it is in, and one more if it drains, at any number of Services: a test counts them.

| what | nftables | ebpf | ratio | promise | |
|---|--:|--:|--:|---|---|
`

func (c *costs) table() string {
	var b strings.Builder
	b.WriteString(costText)
	line := func(what string, rules, both time.Duration, promise float64) {
		ratio, verdict := float64(both)/float64(rules), ""
		if promise > 0 {
			verdict = fmt.Sprintf("at most %.1fx | %s", promise, map[bool]string{true: "holds", false: "**does not hold**"}[ratio <= promise])
		} else {
			verdict = "|"
		}
		fmt.Fprintf(&b, "| %s | %v | %v | %.2fx | %s |\n", what, rules.Round(time.Microsecond), both.Round(time.Microsecond), ratio, verdict)
	}
	line("open the dataplane", median(c.open[0]), median(c.open[1]), 0)
	line(fmt.Sprintf("first Sync at %d x %d", coldSize, endpointsPerService), median(c.coldStart[0]), median(c.coldStart[1]), 1.5)
	var p50 [2]time.Duration
	for i, n := range applySizes {
		p50[i] = median(c.apply[i][1])
		line(fmt.Sprintf("one endpoint replaced at %d x %d", n, endpointsPerService), median(c.apply[i][0]), p50[i], 0)
	}
	ratio := float64(p50[1]) / float64(p50[0])
	fmt.Fprintf(&b, "| ... at %d Services against %d | | | %.2fx | at most 1.5x | %s |\n", applySizes[1], applySizes[0], ratio,
		map[bool]string{true: "holds", false: "**does not hold**"}[ratio <= 1.5])
	b.WriteString("\nMemory of the maps that a daemon takes over from the former one; two more that programs keep for themselves have 1.4 MB:\n\n| map |")
	for _, n := range applySizes {
		fmt.Fprintf(&b, " %d x %d |", n, endpointsPerService)
	}
	b.WriteString("\n|---|--:|--:|\n")
	sum := map[int]uint64{}
	var names []string
	for name := range c.memory[applySizes[0]] {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&b, "| %s |", name)
		for _, n := range applySizes {
			fmt.Fprintf(&b, " %d KiB |", c.memory[n][name]>>10)
			sum[n] += c.memory[n][name]
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "| all |")
	for _, n := range applySizes {
		fmt.Fprintf(&b, " %d KiB |", sum[n]>>10)
	}
	b.WriteString("\n")
	return b.String()
}

func median[T cmp.Ordered](all []T) T { return slices.Sorted(slices.Values(all))[len(all)/2] }
