package app

import (
	"time"

	"sluice/internal/config"
)

func (o *Options) conntrackFlags() flagGroup {
	g := group("Connection tracking (0 leaves what the kernel has)")
	c := &o.Object.Conntrack
	g.Var(optionalInt(&c.MaxPerCore, 32768), "conntrack-max-per-core", "track this `NUMBER` of connections for each CPU")
	g.Var(optionalInt(&c.Min, 131072), "conntrack-min",
		"track at least this `NUMBER` of connections, however few CPUs there are")
	g.Var(optionalTime(&c.TCPEstablishedTimeout, 24*time.Hour), "conntrack-tcp-timeout-established",
		"forget an idle TCP connection after this `TIME`")
	g.Var(optionalTime(&c.TCPCloseWaitTimeout, time.Hour), "conntrack-tcp-timeout-close-wait",
		"forget a TCP connection in CLOSE_WAIT after this `TIME`")
	g.BoolVar(&c.TCPBeLiberal, "conntrack-tcp-be-liberal", false,
		"let TCP packets pass whose sequence numbers are out of the window")
	g.DurationVar(&c.UDPTimeout.Duration, "conntrack-udp-timeout", 0, "forget an unanswered UDP flow after this `TIME`")
	g.DurationVar(&c.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", 0,
		"forget an answered UDP flow after this `TIME`")
	return g.sets(map[string]config.Field{
		"conntrack-max-per-core":            config.FieldMaxPerCore,
		"conntrack-min":                     config.FieldMin,
		"conntrack-tcp-timeout-established": config.FieldTCPEstablishedTimeout,
		"conntrack-tcp-timeout-close-wait":  config.FieldTCPCloseWaitTimeout,
		"conntrack-tcp-be-liberal":          config.FieldTCPBeLiberal,
		"conntrack-udp-timeout":             config.FieldUDPTimeout,
		"conntrack-udp-timeout-stream":      config.FieldUDPStreamTimeout,
	})
}

func (o *Options) iptablesFlags() flagGroup {
	g := group("Modes iptables and nftables")
	c := &o.Object.IPTables
	g.Var(optionalInt(&c.MasqueradeBit, 14), "iptables-masquerade-bit",
		"ask for masquerading by this `BIT` of the packet mark, from 0 to 31; mode ipvs too")
	g.VarPF(optionalBool(&c.LocalhostNodePorts, true), "iptables-localhost-nodeports", "",
		"open NodePorts on 127.0.0.0/8 too; not where mode nftables is named").NoOptDefVal = "true"
	g.DurationVar(&c.SyncPeriod.Duration, "iptables-sync-period", 30*time.Second,
		"`TIME` from one check of everything to the next; mode nftables unless given: 1h")
	g.DurationVar(&c.MinSyncPeriod.Duration, "iptables-min-sync-period", time.Second,
		"`TIME` from one change of the rules to the next; unless given: none")
	return g.sets(map[string]config.Field{
		"iptables-masquerade-bit":      config.FieldIPTablesMasqueradeBit,
		"iptables-localhost-nodeports": config.FieldLocalhostNodePorts,
		"iptables-sync-period":         config.FieldIPTablesSyncPeriod,
		"iptables-min-sync-period":     config.FieldIPTablesMinSyncPeriod,
	})
}

func (o *Options) ipvsFlags() flagGroup {
	g := group("Mode ipvs")
	c := &o.Object.IPVS
	g.StringVar(&c.Scheduler, "ipvs-scheduler", "", "`NAME` of the IPVS scheduler; rr unless given")
	g.StringSliceVar(&c.ExcludeCIDRs, "ipvs-exclude-cidrs", nil, "leave the virtual servers within these `CIDRS` alone")
	g.BoolVar(&c.StrictARP, "ipvs-strict-arp", false, "answer ARP for no address of another interface")
	g.DurationVar(&c.SyncPeriod.Duration, "ipvs-sync-period", 30*time.Second, "`TIME` from one check of everything to the next")
	g.DurationVar(&c.MinSyncPeriod.Duration, "ipvs-min-sync-period", time.Second,
		"`TIME` from one change of the rules to the next")
	g.DurationVar(&c.TCPTimeout.Duration, "ipvs-tcp-timeout", 0,
		"forget an idle TCP session after this `TIME`; 0: as the kernel does")
	g.DurationVar(&c.TCPFinTimeout.Duration, "ipvs-tcpfin-timeout", 0,
		"forget a TCP session this `TIME` after a FIN; 0: as the kernel does")
	g.DurationVar(&c.UDPTimeout.Duration, "ipvs-udp-timeout", 0,
		"forget an idle UDP session after this `TIME`; 0: as the kernel does")
	return g.sets(map[string]config.Field{
		"ipvs-scheduler":       config.FieldIPVSScheduler,
		"ipvs-exclude-cidrs":   config.FieldIPVSExcludeCIDRs,
		"ipvs-strict-arp":      config.FieldIPVSStrictARP,
		"ipvs-sync-period":     config.FieldIPVSSyncPeriod,
		"ipvs-min-sync-period": config.FieldIPVSMinSyncPeriod,
		"ipvs-tcp-timeout":     config.FieldIPVSTCPTimeout,
		"ipvs-tcpfin-timeout":  config.FieldIPVSTCPFinTimeout,
		"ipvs-udp-timeout":     config.FieldIPVSUDPTimeout,
	})
}
