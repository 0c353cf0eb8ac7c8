package render

import (
	"fmt"

	"sluice/test/cluster/peers/figures"
)

func (p *page) floors(r *figures.Report) {
	p.heading("The floor")
	p.line("The same without a proxy. A change: a client that only watches has the event (p50, from the API server's answer), a")
	p.line("bare netlink loop replaces one element, a connection is made. A start: all objects are listed, as many elements are")
	p.line("written, as many endpoints are asked directly as there are Services. An event with a time below zero comes before the")
	p.line("API server's answer to the update; in the sum it counts as zero. \"With the call\" is from the moment that the update")
	p.line("was sent. CPU per update is that of a process that watches EndpointSlices and throws away what it hears.")
	p.line("")
	columns := []string{"one element", "a connection", "list", "write", "ask all", "start: sum"}
	for _, rate := range rates(r) {
		columns = append(columns, "event, others "+others(rate, 0), "change: sum", "with the call", "CPU per update")
	}
	p.columns([]string{"size"}, columns)
	for i := range r.Floors {
		f := &r.Floors[i]
		if f.Missing != "" {
			p.linef("| %v | %s |", f.Size, f.Missing)
			continue
		}
		cells := []string{
			f.Size.String(), f.Element.String(), f.Connect.String(), f.List.String(), f.Write.String(), f.Sweep.String(), f.ColdStart().String(),
		}
		for _, rate := range rates(r) {
			event, ok := f.Event(rate)
			if !ok {
				cells = append(cells, "not measured", "-", "-", "-")
				continue
			}
			sum, _ := f.Change(rate)
			whole, _ := f.Whole(rate)
			cells = append(cells, event.String(), sum.String(), whole.String(), bareCPU(f, rate))
		}
		p.row(cells...)
	}
}

// bareCPU is the CPU time that an update costs who only watches.
func bareCPU(f *figures.Floor, rate int) string {
	if v, ok := f.PerUpdate(rate); ok {
		return v.String()
	}
	return "not measured"
}

// method says how the figures were made.
func (p *page) method(r *figures.Report) {
	p.heading("How it was measured")
	p.line(`All on one machine: etcd and kube-apiserver in one network namespace, a node in another, two pods in two more: the
client, and a server that answers for every endpoint of every Service with the address that it was reached by. So each
Service truly answers, and a client knows which endpoint it got. The EndpointSlices say that the endpoints are on a
hundred other nodes, as nearly all are in a large cluster; the packets take the shortest way.

- For each peer and size there is a fresh node, without rules. The API server and its objects are the same for all
  peers of a size. Every proxy runs with the role system:node-proxier, the same flags and otherwise its defaults
  (kube-proxy writes at most once per second); only the machine-wide limit of tracked connections is left alone.
- Cold start: four threads connect to all ClusterIPs, each again every 5 ms until it answers from the right endpoint.
  That itself takes as long as "ask all" in the table of floors.
- A change: the only endpoint of one Service is replaced by an update of its EndpointSlice, while a client connects
  again and again, at first every 0.1 ms and later less often (1 % of the time so far). Idle changes are 1.2 s apart,
  so that none has to wait for kube-proxy's second since the last; others 0.1 s to 1.1 s, at every phase of a second.
- Other changes: one endpoint of one other EndpointSlice each, at a steady rate; the rate in parentheses is the true one.
- CPU time is utime, stime, cutime and cstime of the process; memory is VmRSS and VmHWM.
- Connections: as many loops as there are CPUs for the rate, one loop for the latency; the connections that the node
  tracks are forgotten between bursts. Figures are medians of the bursts.
- Restart: SIGKILL, one change, start; meanwhile connections to 64 Services every 2 ms.`)
	p.line("")
	p.columns([]string{"setting"}, []string{"value"})
	for _, s := range r.Settings {
		p.row(s.Name, s.Value)
	}
	p.line("")
	p.columns([]string{"size", "peer", "measured"}, []string{"took"})
	each(r, func(x *figures.Result) {
		p.row(x.Size.String(), x.Peer, x.Date.Format("2006-01-02 15:04"), fmt.Sprintf("%.0f s", float64(x.Took)))
	})
}
