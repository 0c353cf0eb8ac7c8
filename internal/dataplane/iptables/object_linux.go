package iptables

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"math"
	"slices"
	"strings"

	"sluice/internal/dataplane/differ"
	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// chainRef identifies a chain in the tables of a family.
type chainRef struct{ table, chain string }

func compareChainRefs(a, b chainRef) int {
	return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(a.chain, b.chain))
}

// id identifies an object in the tables of a family: a chain of ours, a rule of a row in
// a chain that rows share, or our jumps in a built-in chain.
type id struct {
	f *family
	chainRef
	rule string // the rule of a row in a shared chain; empty if the object is a chain
}

// value is the content of a chain, or a rule.
type value struct {
	// rules are the rules of a chain: the constant ones if rows share it, our jumps if it
	// is built in, otherwise all. If the object is a rule, it is the only one.
	rules []string

	row     *proxy.PortKey // the row that the object belongs to, or nil
	foreign bool           // a shared chain that must be rewritten; rules are all its rules
	used    bool           // rules of other programs jump to the chain
}

type (
	changes = differ.Changes[id, value]
	change  = differ.Change[id, value]
)

// builtIn reports whether a chain is not ours: built in, or another program's.
func (c chainRef) builtIn() bool { return !owns(c.table, c.chain) }

// shared reports whether rows share a chain.
func (c chainRef) shared() bool { return slices.Contains(sharedChains, c) }

func same(a, b value) bool { return a.foreign == b.foreign && slices.Equal(a.rules, b.rules) }

// Ranks of changes. A chain is added before the rules that jump to it, and removed after
// them: an object that is added with rank r is removed with rank rankRemoved-r.
const (
	rankLive    = 10 // shared chains and built-in chains
	rankRemoved = 10 * rankLive
)

func order(_ *changes, c *change) differ.Order {
	o := differ.Order{Rank: c.ID.rank()}
	switch {
	case !c.Has && c.ID.rule == "" && !c.ID.builtIn():
		o.Rank = rankRemoved - o.Rank
	case o.Rank == rankLive:
		o.Group = "live"
	}
	return o
}

// rank returns the rank of adding an object. A chain jumps to chains of lower ranks only.
func (x id) rank() int {
	switch {
	case x.builtIn() || x.shared():
		return rankLive
	case x.chain == kubeMark:
		return 0
	case x.chain == kubeMarkOther:
		return 1
	default:
		return 2 + rowChainKind(x.chain) // rowChainKind is -1 for chains that no row owns
	}
}

// size counts the chains that are not shared: see maxChains.
func size(c *change) int {
	if c.ID.rank() == rankLive {
		return 0
	}
	return 1
}

// maxChains returns how many chains one restore may add or remove. The programs of the
// nft variant keep the chains of a restore in a sorted list, which they walk for every
// line, so that a restore costs the product of its lines and its chains. In parts,
// 2,000 Services of ten endpoints take 1.5 s instead of 8.6 s. With the legacy variant
// every restore reads and writes the whole table, so there is no limit.
func maxChains(v ipt.Variant) int {
	if v == ipt.Legacy {
		return math.MaxInt
	}
	return 600
}

// The tables we write.
const filter, nat, mangle = "filter", "nat", "mangle"

// The chains that do not belong to a row.
const (
	kubeServices  = "KUBE-SERVICES"
	kubeNodePorts = "KUBE-NODEPORTS"
	kubeExternal  = "KUBE-EXTERNAL-SERVICES"
	kubeFirewall  = "KUBE-PROXY-FIREWALL"
	kubeForward   = "KUBE-FORWARD"
	kubeAddresses = "KUBE-CLUSTER-IPS"
	kubePost      = "KUBE-POSTROUTING"
	kubeMark      = "KUBE-MARK-MASQ"
	kubeMarkOther = clusterChain + "MASQUERADENONPOD" // kube-proxy removes chains with this prefix that it does not know
	kubeCanary    = "KUBE-PROXY-CANARY"
	kubeProbe     = "KUBE-PROXY-PROBE"
)

// The prefixes of the names of a row's own chains.
const (
	clusterChain  = "KUBE-SVC-"
	localChain    = "KUBE-SVL-"
	externalChain = "KUBE-EXT-"
	sourceChain   = "KUBE-FW-"
	endpointChain = "KUBE-SEP-"

	oldExternalChain = "KUBE-XLB-" // of kube-proxy before 1.24, which has EXT and SVL instead now
)

// rowChainPrefixes lists them. A chain jumps only to chains whose prefix is listed before
// its own.
var rowChainPrefixes = []string{endpointChain, clusterChain, localChain, externalChain, oldExternalChain, sourceChain}

// The chains of kube-proxy's ipvs mode that exist in two tables.
const (
	ipvsNodePort     = "KUBE-NODE-PORT"
	ipvsLoadBalancer = "KUBE-LOAD-BALANCER"
)

// ownChains lists, by table, the chains of kube-proxy's iptables and ipvs modes and ours,
// except for those of rows.
var ownChains = map[string][]string{
	nat: {kubeServices, kubePost, kubeMark, kubeNodePorts, kubeCanary, kubeProbe, ipvsNodePort, ipvsLoadBalancer},
	filter: {
		kubeServices, kubeForward, kubeFirewall, kubeExternal, kubeNodePorts, kubeAddresses, kubeCanary,
		ipvsNodePort, ipvsLoadBalancer, "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER", "KUBE-SOURCE-RANGES-FIREWALL",
	},
	mangle: {kubeCanary},
}

// owns reports whether a chain is kube-proxy's or ours. It compares whole names, because
// other programs use the prefix, too: kubelet has KUBE-FIREWALL and KUBE-MARK-DROP. It
// depends on the table, because a name may be kube-proxy's in one table and another
// program's in another.
func owns(table, chain string) bool {
	return slices.Contains(ownChains[table], chain) || table == nat && isRowChain(chain)
}

// rowChainKind returns the index in rowChainPrefixes of the prefix of a chain that belongs
// to a row, or -1 if it belongs to none.
func rowChainKind(chain string) int {
	return slices.IndexFunc(rowChainPrefixes, func(prefix string) bool {
		hash, ok := strings.CutPrefix(chain, prefix)
		return ok && len(hash) == hashLength && strings.Trim(hash, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
	})
}

func isRowChain(chain string) bool { return rowChainKind(chain) >= 0 }

// isEntry reports whether a rule of a built-in chain is a jump that we or kube-proxy
// wrote. Other programs may jump to some of our chains, for example to mark packets for
// masquerade; those jumps are not ours.
func isEntry(table, rule string) bool {
	to := ipt.Target(rule)
	return owns(table, to) && !isRowChain(to) && to != kubeMark && to != ipvsLoadBalancer
}

// hashLength is the length of the hash in the name of a chain.
const hashLength = 16

// hash returns the part of a chain's name that identifies the row and, unless endpoint is
// empty, the endpoint.
func hash(k proxy.PortKey, endpoint string) string {
	sum := sha256.Sum256([]byte(portName(k) + strings.ToLower(k.Protocol.String()) + endpoint))
	return base32.StdEncoding.EncodeToString(sum[:])[:hashLength]
}

// portName returns the name of a service port as it appears in comments.
func portName(k proxy.PortKey) string {
	name := k.Namespace + "/" + k.Name
	if k.Port != "" {
		name += ":" + k.Port
	}
	return name
}

// comment returns a comment match. It replaces characters that would need quoting within
// the quotes; names of Kubernetes objects have none.
func comment(text string) string {
	const maxLength = 255 // of the kernel
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune(`"'\`, r) {
			return '_'
		}
		return r
	}, text)
	return `-m comment --comment "` + clean[:min(len(clean), maxLength)] + `" `
}
