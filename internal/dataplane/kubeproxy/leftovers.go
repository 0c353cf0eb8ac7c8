package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/nft"
	"sluice/internal/kernel/sysctl"
)

// Leftovers is what of kube-proxy's is in the kernel.
type Leftovers struct {
	Tables  []nft.Table // of the nftables mode
	Rules   []Rules     // of the iptables and ipvs modes
	Link    *Link       // of the ipvs mode; nil if it is not there
	Servers []Server    // IPVS virtual servers at addresses of the link
	Sets    []string    // IP sets of the ipvs mode

	// OtherServers counts IPVS virtual servers beside the link, if there is one.
	// They may be kube-proxy's for node ports, or anybody's.
	OtherServers int
}

// The modes of kube-proxy that can be found.
const (
	NFTables = "nftables"
	IPTables = "iptables"
	IPVS     = "ipvs"
)

// Empty reports whether nothing was found.
func (l *Leftovers) Empty() bool { return len(l.Modes()) == 0 }

// Modes returns which modes of kube-proxy left something. Chains that both the
// iptables and the ipvs mode make speak for the former only where nothing
// speaks for the latter.
func (l *Leftovers) Modes() []string {
	var modes []string
	if len(l.Tables) > 0 {
		modes = append(modes, NFTables)
	}
	owners := map[owner]bool{ipvsMode: l.Link != nil || len(l.Sets) > 0}
	for i := range l.Rules {
		for _, c := range l.Rules[i].Chains {
			owners[chainOwner(l.Rules[i].Table, c)] = true
		}
		for _, u := range l.Rules[i].InUse {
			owners[chainOwner(l.Rules[i].Table, u.Chain)] = true
		}
	}
	if owners[iptablesMode] || owners[shared] && !owners[ipvsMode] {
		modes = append(modes, IPTables)
	}
	if owners[ipvsMode] {
		modes = append(modes, IPVS)
	}
	return modes
}

// host is the kernel and the programs, as the calling thread's network
// namespace has them.
type host struct {
	nft          nft.Interface
	ipt          func(context.Context, ipt.Family, ipt.Variant) (ipt.Interface, error)
	legacyTables func(ipt.Family) ([]string, error)
	ipvs         ipvsKernel
	sysctls      sysctl.Interface
}

// open returns the real host.
func open() (*host, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	return &host{
		nft: conn,
		ipt: func(ctx context.Context, f ipt.Family, v ipt.Variant) (ipt.Interface, error) {
			if v == ipt.Legacy {
				if err := ipt.LegacyPermission(); err != nil {
					return nil, err
				}
			}
			// The concrete pointer must not become a non-nil interface on an error.
			c, err := ipt.Open(ctx, f, v)
			if err != nil {
				return nil, err
			}
			return c, nil
		},
		legacyTables: ipt.LegacyTables,
		ipvs:         ipvsNetlink{},
		sysctls:      sysctl.Kernel{},
	}, nil
}

// Find returns what kube-proxy left in the calling thread's network namespace
// and changes nothing. An error names every place that could not be looked at;
// what the others hold is returned beside it.
func Find(ctx context.Context) (Leftovers, error) {
	h, err := open()
	if err != nil {
		return Leftovers{}, err
	}
	defer h.nft.Close()
	return h.find(ctx)
}

func (h *host) find(ctx context.Context, but ...ipt.Variant) (Leftovers, error) {
	var l Leftovers
	var errs []error
	var err error
	l.Tables, err = h.findTables(ctx)
	errs = append(errs, err)
	for _, v := range ipt.Variants() {
		if slices.Contains(but, v) {
			continue
		}
		for _, f := range ipt.Families() {
			rules, err := h.findRules(ctx, f, v)
			l.Rules = append(l.Rules, rules...)
			errs = append(errs, err)
		}
	}
	l.Link, err = h.ipvs.link()
	errs = append(errs, err)
	if l.Link != nil {
		servers, err := h.ipvs.servers()
		l.Servers = l.Link.served(servers)
		l.OtherServers = len(servers) - len(l.Servers)
		errs = append(errs, err)
	}
	sets, err := h.ipvs.sets()
	for _, s := range sets {
		if isSet(s) {
			l.Sets = append(l.Sets, s)
		}
	}
	return l, errors.Join(append(errs, err)...)
}

// nftFamily returns a family as nf_tables numbers it.
func nftFamily(f ipt.Family) nft.Family {
	if f == ipt.IPv6 {
		return nft.IP6
	}
	return nft.IP
}

// findTables looks for the tables of the nftables mode.
func (h *host) findTables(ctx context.Context) ([]nft.Table, error) {
	var found []nft.Table
	for _, f := range ipt.Families() {
		t := nft.Table{Family: nftFamily(f), Name: tableName}
		listing, err := h.list(ctx, t)
		if err != nil {
			return found, fmt.Errorf("look for %v: %w", t, err)
		}
		if listing != nil {
			found = append(found, t)
		}
	}
	return found, nil
}
