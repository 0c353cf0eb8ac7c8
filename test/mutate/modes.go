package main

// Mistakes in what modes write. Where tests of a mode need kernel modules that this host lacks, as
// those of IPVS may, they notice only what their fakes show.

const modes = "internal/dataplane/"

var (
	byNftables    = []string{modes + "nftables"}
	byIptables    = []string{modes + "iptables"}
	byIPVS        = []string{modes + "ipvs"}
	byUserspace   = []string{modes + "userspace"}
	byBalance     = []string{"internal/balance", modes + "userspace"}
	byEBPF        = []string{modes + "ebpf"}
	byKernelspace = []string{modes + "kernelspace"}
)

var ofRules = []mutation{
	{
		"nftables: packets to be dropped are rejected, and the other way round", swapsVerdict, modes + "nftables/row_linux.go",
		"if far.Otherwise == proxy.Drop {", "if far.Otherwise != proxy.Drop {", byNftables,
	},
	{
		"nftables: source ranges are not looked up", dropsRule, modes + "nftables/row_linux.go",
		"out.element(t, t.restricted, c.Name)", "", byNftables,
	},
	{
		"nftables: a class with the Local list has the Cluster list", wrongList, modes + "nftables/row_linux.go",
		"scope: r.Scope, masquerade: masquerade}", "scope: proxy.ScopeCluster, masquerade: masquerade}", byNftables,
	},
	{
		"nftables: an endpoint of unknown node has no hairpin", wrongSource, modes + "nftables/endpoints_linux.go",
		"s.list[i].MayHairpin()", "s.list[i].Local", byNftables,
	},
	{
		"nftables: the endpoint in the last slot is never chosen", losesEndpoint, modes + "nftables/choose_linux.go",
		"chooseSlot(c.method, uint32(c.count), firstSlot(c.scope))", "chooseSlot(c.method, uint32(max(1, c.count-1)), firstSlot(c.scope))", byNftables,
	},
	{
		"nftables: elements that are gone stay", skipsRemoval, modes + "nftables/write_linux.go",
		"c.ID.kind == kindElement && c.Had {", "c.ID.kind == kindElement && c.Had && c.Has {", byNftables,
	},
	{
		"nftables: loopback addresses take NodePorts", dropsRule, modes + "nftables/base_linux.go",
		"for _, p := range except {", "for _, p := range except[:0] {", byNftables,
	},
	{
		"nftables: loopback is opened before its guard is written", wrongOrder, modes + "nftables/sync_linux.go",
		"\trefused, err := d.differ.Apply(", "\td.localnet.Open(ctx)\n\trefused, err := d.differ.Apply(", byNftables,
	},
	{
		"iptables: packets to be dropped are rejected, and the other way round", swapsVerdict, modes + "iptables/row_linux.go",
		"case route.Otherwise == proxy.Drop:", "case route.Otherwise != proxy.Drop:", byIptables,
	},
	{
		"iptables: the last endpoint is never chosen", losesEndpoint, modes + "iptables/row_linux.go",
		"left := len(list) - i; left > 1 {", "left := len(list) - i; left > 2 {", byIptables,
	},
	{
		"iptables: all origins use the list of clients elsewhere", wrongList, modes + "iptables/row_linux.go",
		"do[origin].next = r.list(route.Scope)", "do[origin].next = r.list(policy[proxy.Elsewhere].Scope)", byIptables,
	},
	{
		"iptables: an endpoint of unknown node has no hairpin", wrongSource, modes + "iptables/row_linux.go",
		"r.sp.Affinity > 0 || e.MayHairpin() }", "r.sp.Affinity > 0 || e.Local }", byIptables,
	},
	{
		"iptables: rules of rows that are gone stay", skipsRemoval, modes + "iptables/write_linux.go",
		`add(stepDelete, "-D", c.ID.rule)`, "", byIptables,
	},
	{
		"iptables: rules that refuse a row go before those that forward it come", wrongOrder, modes + "iptables/write_linux.go",
		"return c.ID.table == nat && c.Has })", "return c.ID.table == mangle && c.Has })", byIptables,
	},
	{
		"iptables: clients are not remembered", dropsRule, modes + "iptables/row_linux.go",
		`send += "-m recent --set " + r.recentList(name)`, "_ = r.recentList", byIptables,
	},
	{
		"iptables: loopback is opened before its guard is written", wrongOrder, modes + "iptables/iptables_linux.go",
		"\trefused, err := d.differ.Apply(", "\td.localnet.Open(ctx)\n\trefused, err := d.differ.Apply(", byIptables,
	},
}

var ofIPVS = []mutation{
	{
		"ipvs: IPVS takes all clients of a frontend that is split by origin", wrongList, modes + "ipvs/row_linux.go",
		"r.Scope == far.Scope && !d.local[at]", "r.Scope <= far.Scope && !d.local[at]", byIPVS,
	},
	{
		"ipvs: a real server of TCP goes with its connections", skipsRemoval, modes + "ipvs/write_linux.go",
		"\t\t\to.Verb = ipvs.Set\n", "", byIPVS,
	},
	{
		"ipvs: a new endpoint is not added", losesEndpoint, modes + "ipvs/row_linux.go",
		"if i >= len(other.reals) || other.reals[i] != r {", "if i < len(other.reals) && other.reals[i] != r {", byIPVS,
	},
	{
		"ipvs: a change of session affinity is not written", losesEvent, modes + "ipvs/row_linux.go",
		"if before, had := was[s]; !had || before.settings != f.settings {", "if _, had := was[s]; !had {", byIPVS,
	},
	{
		"ipvs: NodePorts of IPv6 are at the alias of IPv4", wrongRule, modes + "ipvs/row_linux.go",
		"aliases[sp.Key.Family], f.Addr.Port()", "aliases[proxy.IPv4], f.Addr.Port()", byIPVS,
	},
	{
		"ipvs: draining endpoints lose their flows", losesEndpoint, modes + "ipvs/row_linux.go",
		"idle := slices.Clip(sp.Draining) // get weight 0", "idle := slices.Clip(sp.Draining[:0])", byIPVS,
	},
}

var ofUserspace = []mutation{
	{
		"userspace: TCP connections use the Cluster list", wrongList, modes + "userspace/tcp_linux.go",
		"c.service.Choose(c.Client.Addr(), c.Scope, c.tried)", "c.service.Choose(c.Client.Addr(), proxy.ScopeCluster, c.tried)", byUserspace,
	},
	{
		"userspace: clients are shown where they must be hidden, and the other way round", wrongSource, modes + "userspace/tcp_linux.go",
		"w.connect(proxy.TCP, c.Client, e, c.Masquerade)", "w.connect(proxy.TCP, c.Client, e, 1-c.Masquerade)", byUserspace,
	},
	{
		"userspace: a UDP session stays with an endpoint that is gone", skipsRemoval, modes + "userspace/udp_linux.go",
		" || !s.service.Serves(s.Endpoint) {", " {", byUserspace,
	},
	{
		"userspace: a NodePort is not found", losesEvent, "internal/balance/index.go",
		"proxy.FamilyOf(dst.Addr()).Unspecified(), dst.Port())}]", "proxy.FamilyOf(dst.Addr()).Unspecified(), 0)}]", byBalance,
	},
	{
		"userspace: frontends that are gone are still found", skipsRemoval, "internal/balance/index.go",
		"\t\t\tdelete(x.frontends, key)\n", "", byBalance,
	},
	{
		"userspace: clients are not remembered", losesEvent, "internal/balance/service.go",
		"s.remember(Client{client, scope}, Remembered{e.Addr, time.Now()})", "", byBalance,
	},
}

var ofSockets = []mutation{
	{
		"ebpf: source ranges do not apply to sockets", dropsRule, modes + "ebpf/row_linux.go",
		"r.From != nil || r.Masquerade != own", "r.Masquerade != own", byEBPF,
	},
	{
		"ebpf: sockets use the Cluster list", wrongList, modes + "ebpf/row_linux.go",
		"out[from] |= actionLocalList", "_ = actionLocalList", byEBPF,
	},
	{
		"ebpf: an endpoint that joins a list is not written", losesEndpoint, modes + "ebpf/row_linux.go",
		"if i >= len(other.list) || other.list[i] != e ||", "if i < len(other.list) && other.list[i] != e ||", byEBPF,
	},
	{
		"ebpf: endpoints go before the frontends that refer to them", wrongOrder, modes + "ebpf/write_linux.go",
		"\tcase c.Has:\n\t\treturn 0\n", "\tcase !c.Has:\n\t\treturn 0\n", byEBPF,
	},
	{
		"ebpf: programs keep what they cached when maps change", losesEvent, modes + "ebpf/write_linux.go",
		"return d.kernel.writeMaps(func() error { return d.writeInOrder(some) })", "return d.writeInOrder(some)", byEBPF,
	},
	{
		"ebpf: UDP sockets whose endpoint is gone are not cut", losesEvent, modes + "ebpf/ebpf_linux.go",
		"return k.Protocol == proxy.UDP }) {", "return k.Protocol == proxy.SCTP }) {", byEBPF,
	},
	{
		"ebpf: the first entry to be removed stays", skipsRemoval, modes + "ebpf/write_linux.go",
		"for i, k := range keys {\n\t\tif err := m.Delete(k)", "for i, k := range keys[1:] {\n\t\tif err := m.Delete(k)", byEBPF,
	},
}

var ofWindows = []mutation{
	{
		"kernelspace: clients elsewhere use the list of pods", wrongList, modes + "kernelspace/row.go",
		"p := sp.Policy(f.Kind, n)[proxy.Elsewhere]", "p := sp.Policy(f.Kind, n)[proxy.OurPod]", byKernelspace,
	},
	{
		"kernelspace: frontends with several source ranges are open", dropsRule, modes + "kernelspace/row.go",
		"case p.From != nil:", "case len(p.From) == 1:", byKernelspace,
	},
	{
		"kernelspace: endpoints that are gone stay", skipsRemoval, modes + "kernelspace/write.go",
		"e.ours && e.vip == x.vip {", "e.ours && e.vip && x.vip {", byKernelspace,
	},
	{
		"kernelspace: endpoints go before the load balancers that use them", wrongOrder, modes + "kernelspace/write.go",
		"\tdefault:\n\t\treturn 4\n", "\tdefault:\n\t\treturn 1\n", byKernelspace,
	},
	{
		"kernelspace: a load balancer has its last endpoint only", losesEndpoint, modes + "kernelspace/write.go",
		"l.Endpoints = append(l.Endpoints, had.id)", "l.Endpoints = []string{had.id}", byKernelspace,
	},
	{
		"kernelspace: what HNS cannot do is not reported", wrongReport, modes + "kernelspace/row.go",
		"d.op.refused[cur.Key] = limits", "", byKernelspace,
	},
}
