package main

// Mistakes in what all modes share.

var (
	byPolicy    = []string{"internal/proxy", "internal/conformance", modes + "kernelspace", modes + "nftables"}
	byResolve   = []string{"internal/resolve", "internal/engine", modes + "nftables"}
	byDiffer    = []string{modes + "differ", modes + "nftables"}
	byEngine    = []string{"internal/engine"}
	byConntrack = []string{"internal/conntrack"}
)

var ofPolicy = []mutation{
	{
		"proxy: without an endpoint here packets are rejected, without one anywhere dropped", swapsVerdict, "internal/proxy/serviceport.go",
		"\t\tif sp.UsableSomewhere {", "\t\tif !sp.UsableSomewhere {", byPolicy,
	},
	{
		"proxy: externalTrafficPolicy Local applies to our pods", wrongList, "internal/proxy/serviceport.go",
		"case from == Elsewhere:", "case from != ThisNode:", byPolicy,
	},
	{
		"proxy: source ranges apply to NodePorts", dropsRule, "internal/proxy/serviceport.go",
		"if k == LoadBalancer {", "if k != ClusterIP {", byPolicy,
	},
	{
		"proxy: masqueradeAll does not apply to our pods", wrongSource, "internal/proxy/serviceport.go",
		"case n.MasqueradeAll:", "case n.MasqueradeAll && from != OurPod:", byPolicy,
	},
	{
		"proxy: the loopback address of IPv6 takes NodePorts", wrongRule, "internal/proxy/node.go",
		"return f == IPv4 && n.LocalhostNodePorts }", "return n.LocalhostNodePorts }", byPolicy,
	},
}

var ofObjects = []mutation{
	{
		"resolve: a new endpoint does not take the slot of the last one that left", wrongOrder, "internal/resolve/row.go",
		"\t\tcase len(empty) > 0:", "\t\tcase len(empty) > 1:", byResolve,
	},
	{
		"resolve: hints apply although some ready endpoints have none", losesEndpoint, "internal/resolve/select.go",
		"e.flags.has(ready) && !has(e)", "e.flags.has(ready) && has(e) && !has(e)", byResolve,
	},
	{
		"resolve: a terminating endpoint that does not serve is used", wrongList, "internal/resolve/select.go",
		"c.flags.has(serving | terminating)", "c.flags.has(terminating)", byResolve,
	},
	{
		"resolve: no terminating endpoint is used for the Local list", losesEndpoint, "internal/resolve/select.go",
		"return e.flags.has(local) && e.lastResort() })", "return e.flags.has(local|ready) && e.lastResort() })", byResolve,
	},
	{
		"resolve: the younger Service wins an address", wrongList, "internal/resolve/claims.go",
		"if compareClaimants(by, owner) > 0 {", "if compareClaimants(by, owner) < 0 {", byResolve,
	},
	{
		"resolve: a Service that gets a free address is not resolved again", losesEvent, "internal/resolve/claims.go",
		"\tc.owners[cl] = owner\n\treturn owner.service\n", "\tc.owners[cl] = owner\n\treturn nil\n", byResolve,
	},
	{
		"resolve: ranges that cannot be read open the Service", swapsVerdict, "internal/resolve/row.go",
		"return []netip.Prefix{}", "return nil", byResolve,
	},
	{
		"resolve: a slice that moves to another Service stays in force for the former one", losesEvent, "internal/resolve/resolver.go",
		"\t\tdirty[e] = true\n\t\tat, _ := e.find(name.Name)\n\t\te.slices = slices.Delete", "\t\tat, _ := e.find(name.Name)\n\t\te.slices = slices.Delete", byResolve,
	},
	{
		"source: an object that is no longer wanted stays", skipsRemoval, "internal/source/source.go",
		"\t\tc.forget(name)\n\t\treturn\n", "\t\treturn\n",
		[]string{"internal/source"},
	},
	{
		"source: a change of an object without a version is lost", losesEvent, "internal/source/source.go",
		`case known && version != "" && version == was.version:`, "case known && version == was.version:",
		[]string{"internal/source", "internal/source/manifest"},
	},
}

var ofEngine = []mutation{
	{
		"differ: an object that no row shares any more stays", skipsRemoval, modes + "differ/differ.go",
		"case after == 0 && exists", "case after < 0 && exists", byDiffer,
	},
	{
		"differ: a new value of an object is not written", losesEvent, modes + "differ/changes.go",
		"return x.Had && x.Has && c.mode.Same(x.Old, x.New)", "return x.Had && x.Has", byDiffer,
	},
	{
		"differ: what refers to objects is written before them", wrongOrder, modes + "differ/changes.go",
		"cmp.Compare(a.order.Rank, b.order.Rank), cmp.Compare(a.order.Group", "cmp.Compare(b.order.Rank, a.order.Rank), cmp.Compare(a.order.Group", byDiffer,
	},
	{
		"differ: objects that linger are removed early", skipsRemoval, modes + "differ/differ.go",
		"time.Since(i.since) >= d.mode.IdleTime", "time.Since(i.since) < d.mode.IdleTime", byDiffer,
	},
	{
		"differ: a row takes over a frontend that a refused row still has", wrongOrder, modes + "differ/differ.go",
		"d.outdated[key] = true", "delete(d.outdated, key)", byDiffer,
	},
	{
		"engine: a change of a ServiceCIDR is lost", losesEvent, "internal/engine/handlers.go",
		"return e.resolver.UpdateServiceCIDR(old, cur) })", "return e.resolver.UpdateServiceCIDR(old, cur) && cur == nil })", byEngine,
	},
	{
		"engine: a refused row is reported in force", wrongReport, "internal/engine/status.go",
		"\t\tif refused[k] != nil {\n\t\t\tcontinue\n", "\t\tif refused[k] != nil && w.full {\n\t\t\tcontinue\n", byEngine,
	},
	{
		"engine: a refused row is not retried", losesEvent, "internal/engine/engine.go",
		"atLatest(r.NextTry)", "_ = r", byEngine,
	},
	{
		"engine: after an error of unknown effect nothing is compared", losesEvent, "internal/engine/engine.go",
		"(w.full || errors.Is(err, proxy.ErrNeedSync))", "w.full", byEngine,
	},
	{
		"engine: it writes before all slices are known", losesEndpoint, "internal/engine/engine.go",
		"if !synced.services || !synced.slices {", "if !synced.services {", byEngine,
	},
	{
		"engine: damage by another process is not repaired", losesEvent, "internal/engine/watch.go",
		"r.Sync() // If the repair has to wait, the run schedules it.", "", byEngine,
	},
	{
		"runner: a request during a run is lost", losesEvent, "internal/runner/runner.go",
		"make(chan struct{}, 1)", "make(chan struct{})",
		[]string{"internal/runner", "internal/engine"},
	},
	{
		"conntrack: flows to a Service that is gone are kept", skipsRemoval, "internal/conntrack/reconciler.go",
		"\t\treturn translated(f)\n", "\t\treturn false\n", byConntrack,
	},
	{
		"conntrack: flows are ended before the write has succeeded", wrongOrder, "internal/conntrack/reconciler.go",
		"c.staleUnder(nil, f) && (c.pending == nil || c.staleUnder(c.pending, f))", "c.staleUnder(nil, f) || c.pending != nil && c.staleUnder(c.pending, f)", byConntrack,
	},
	{
		"conntrack: flows of SCTP are kept", losesEvent, "internal/conntrack/reconciler.go",
		"[]proxy.Protocol{proxy.UDP, proxy.SCTP}", "[]proxy.Protocol{proxy.UDP}", byConntrack,
	},
	{
		"health: a node without an endpoint answers that it has one", wrongReport, "internal/health/servicechecks.go",
		"healthy && check.Local > 0", "healthy || check.Local > 0",
		[]string{"internal/health"},
	},
	{
		"health: the check of a Service that is gone is still answered", skipsRemoval, "internal/health/servicechecks.go",
		"\t\t\tdelete(c.checks, change.Key())\n", "",
		[]string{"internal/health"},
	},
	{
		"conntrack: flows to a NodePort's number at other hosts are ended", wrongList, "internal/conntrack/reconciler.go",
		"return proxy.WithinOutermost(c.local, f.Orig.Dst.Addr()) ||", "return f.Orig.Dst.IsValid() ||", byConntrack,
	},
	{
		"engine: a write is announced without its rows", wrongReport, "internal/engine/engine.go",
		"e.observer.Began(w.step)", "e.observer.Began(&proxy.Delta{})", byEngine,
	},
	{
		"explain: a write that is late is not told", wrongReport, "internal/explain/reason.go",
		"case !sameOutcome(x.want, x.now):", "case false:",
		[]string{"internal/explain", "test/daemon/explain"},
	},
	{
		"explain: a kernel that differs agrees", wrongReport, "internal/explain/kernel.go",
		"case len(is.Differences) > 0:", "case len(is.Differences) > maxListed:",
		[]string{"internal/explain", "test/daemon/explain"},
	},
	{
		"cli: overrides of direction reach the terminal", wrongReport, "internal/cli/text.go",
		"\t\tif !unicode.IsPrint(r) {", "\t\tif !unicode.IsPrint(r) && r != '\\u202e' {",
		[]string{"internal/cli"},
	},
}
