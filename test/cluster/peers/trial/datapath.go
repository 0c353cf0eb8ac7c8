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
	d.Took = figures.Of(time.Since(began))
	t.result.DataPath = d
	return nil
}

// pair measures one protocol.
func (t *trial) pair(ctx context.Context, p proxy.Protocol, to [ways][]netip.AddrPort, out *figures.Pair) error {
	var rates [ways][]figures.Seconds // connections per second, of each round
	var took [ways][]figures.Seconds
	for range rounds {
		for w := range ways {
			many, err := t.burst(ctx, traffic.Burst{Protocol: p, To: to[w], Loops: runtime.NumCPU(), For: t.Limits.Burst})
			if err != nil {
				return err
			}
			one, err := t.burst(ctx, traffic.Burst{Protocol: p, To: to[w], Loops: 1, For: t.Limits.Burst})
			if err != nil {
				return err
			}
			rates[w] = append(rates[w], figures.Seconds(float64(len(many.Took))/many.Elapsed.Seconds()))
			for _, d := range one.Took {
				took[w] = append(took[w], figures.Of(d))
			}
			out.Made += len(many.Took) + len(one.Took)
			out.Failed += many.Failed + one.Failed
			if err := cmp.Or(many.Err, one.Err); err != nil && out.Error == "" {
				out.Error = err.Error()
			}
		}
	}
	out.PerSecond = figures.Rates{
		Service: float64(figures.Percentile(rates[byService], 50)),
		Direct:  float64(figures.Percentile(rates[directly], 50)),
	}
	out.Service, out.Direct = latency(took[byService]), latency(took[directly])
	return nil
}

func latency(took []figures.Seconds) figures.Latency {
	return figures.Latency{P50: figures.Percentile(took, 50), P99: figures.Percentile(took, 99)}
}

// burst makes connections on a node that remembers no earlier ones.
func (t *trial) burst(ctx context.Context, b traffic.Burst) (traffic.Done, error) {
	if err := ctx.Err(); err != nil {
		return traffic.Done{}, err
	}
	if err := t.site.node.Host.FlushConntrack(); err != nil {
		return traffic.Done{}, err
	}
	return t.site.client.Run(b)
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
