package trial

import (
	"cmp"
	"context"
	"net/netip"
	"runtime"
	"time"

	"sluice/internal/proxy"
	"sluice/test/cluster/peers/figures"
	"sluice/test/cluster/peers/load"
	"sluice/test/cluster/peers/traffic"
)

// rounds is how often each kind of connection has its turn. They alternate, so
// that whatever else the machine does hits all of them.
const rounds = 5

// way is by which connections reach an endpoint.
type way int

const (
	byService way = iota
	directly
	ways
)

// dataPath compares connections through a ClusterIP with direct ones.
func (t *trial) dataPath(ctx context.Context) error {
	if err := t.settle(ctx, quiet); err != nil {
		return err
	}
	began := time.Now()
	d := &figures.DataPath{}
	service := netip.AddrPortFrom(load.ClusterIP(load.Data), load.ServicePort)
	to := [ways][]netip.AddrPort{byService: {service}, directly: load.DataTargets()}
	if err := t.pair(ctx, proxy.TCP, to, &d.TCP); err != nil {
		return err
	}
	if err := t.pair(ctx, proxy.UDP, to, &d.UDP); err != nil {
		return err
	}
	if err := t.bulk(ctx, &d.Bulk); err != nil {
		return err
	}
	d.Took = figures.SecondsOf(time.Since(began))
	t.result.DataPath = d
	return nil
}

// pair measures one protocol.
func (t *trial) pair(ctx context.Context, p proxy.Protocol, to [ways][]netip.AddrPort, out *figures.Pair) error {
	var tallies [ways]tally
	for range rounds {
		for w := range ways {
			if err := t.site.round(ctx, p, to[w], t.Limits.Burst, &tallies[w]); err != nil {
				return err
			}
		}
	}
	out.PerSecond = figures.Rates{Service: tallies[byService].perSecond(), Direct: tallies[directly].perSecond()}
	out.Service, out.Direct = tallies[byService].latency(), tallies[directly].latency()
	for _, one := range tallies {
		out.Made += one.made
		out.Failed += one.failed
		if one.err != nil && out.Error == "" {
			out.Error = one.err.Error()
		}
	}
	return nil
}

// tally sums up rounds of connections of one kind.
type tally struct {
	rates        []figures.Seconds // connections per second, of each round
	took         []figures.Seconds // of each connection of a single loop
	made, failed int
	err          error // of the first that failed
}

// perSecond is the rate of the middle round.
func (t *tally) perSecond() float64 { return float64(figures.Percentile(t.rates, 50)) }

func (t *tally) latency() figures.Latency {
	return figures.Latency{P50: figures.Percentile(t.took, 50), P99: figures.Percentile(t.took, 99)}
}

// round makes one burst for the rate, with as many loops as there are
// processors, and one for the latency, with one loop. The node remembers no
// earlier connections.
func (s *site) round(ctx context.Context, p proxy.Protocol, to []netip.AddrPort, d time.Duration, out *tally) error {
	for _, loops := range []int{runtime.NumCPU(), 1} {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.node.Host.FlushConntrack(); err != nil {
			return err
		}
		done, err := s.client.Run(traffic.Burst{Protocol: p, To: to, Loops: loops, For: d})
		if err != nil {
			return err
		}
		out.made += len(done.Took)
		out.failed += done.Failed
		out.err = cmp.Or(out.err, done.Err)
		if loops > 1 || runtime.NumCPU() == 1 {
			out.rates = append(out.rates, figures.Seconds(float64(len(done.Took))/done.Elapsed.Seconds()))
		}
		if loops == 1 {
			for _, one := range done.Took {
				out.took = append(out.took, figures.SecondsOf(one))
			}
		}
	}
	return nil
}

// bulk measures the throughput of one connection.
func (t *trial) bulk(ctx context.Context, out *figures.Rates) error {
	to := [ways]netip.AddrPort{
		byService: netip.AddrPortFrom(load.ClusterIP(load.Data), load.BulkPort),
		directly:  netip.AddrPortFrom(load.DataTargets()[0].Addr(), traffic.BulkPort),
	}
	var rates [ways][]figures.Seconds
	for range rounds {
		for w := range ways {
			if err := ctx.Err(); err != nil {
				return err
			}
			rate, err := t.site.client.Bulk(to[w], 2*t.Limits.Burst)
			if err != nil {
				return err
			}
			rates[w] = append(rates[w], figures.Seconds(rate))
		}
	}
	out.Service = float64(figures.Percentile(rates[byService], 50))
	out.Direct = float64(figures.Percentile(rates[directly], 50))
	return nil
}
