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

type chainRef struct{ table, chain string }

func compareChainRefs(a, b chainRef) int {
	return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(a.chain, b.chain))
}

// id names what is in the tables of a family: a chain of ours, a rule in a chain
// that rows share, or what we have in a built-in chain.
type id struct {
	f *family
	chainRef
	rule string // in a chain that rows share; empty: it is a chain
}

// value is what a chain or rule is like.
type value struct {
	// rules are all rules of a chain; of one that rows share the constant ones,
	// of a built-in one those that lead to us. A rule is itself.
	rules []string

	row     *proxy.PortKey // the row whose chain or rule it is; nil: none
	foreign bool           // of a chain that rows share: what rules has is all of its rules, and not as it should be
	used    bool           // rules of others go to the chain
}

type (
	changes = differ.Changes[id, value]
	change  = differ.Change[id, value]
)

// builtIn reports whether a chain is not ours.
func (c chainRef) builtIn() bool { return !owns(c.table, c.chain) }

// shared reports whether rows share a chain.
func (c chainRef) shared() bool { return slices.Contains(sharedChains, c) }

func same(a, b value) bool { return a.foreign == b.foreign && slices.Equal(a.rules, b.rules) }

// Ranks of changes. A chain is written before what goes to it, and removed after
// that: what has rank r when it comes has rankGone-r when it goes.
const (
	rankLive = 10 // the rules that rows share, and what leads to us
	rankGone = 10 * rankLive
)

func order(_ *changes, c *change) differ.Order {
	o := differ.Order{Rank: c.ID.rank()}
	switch {
	case !c.Has && c.ID.rule == "" && !c.ID.builtIn():
		o.Rank = rankGone - o.Rank
	case o.Rank == rankLive:
		o.Group = "live"
	}
	return o
}

// rank tells which chains go to which.
func (x id) rank() int {
	switch {
	case x.builtIn() || x.shared():
		return rankLive
	case x.chain == kubeMark:
		return 0
	case x.chain == kubeMarkOther:
		return 1
	default:
		return 2 + rowChainKind(x.chain) // 1 if it is no row's
	}
}

func size(c *change) int {
	if c.ID.rank() == rankLive {
		return 0
	}
	return 1
}

// maxChains is how many chains one restore of the nft variant makes or removes.
// Its programs keep the chains they deal with in one sorted list, which they
// walk for every line: a restore costs the product of its lines and its chains.
// In parts, 2,000 Services of ten endpoints take 1.5 s and not 8.6 s. With the
// legacy variant every restore reads and writes the whole table, so there is one.
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
	kubeMarkOther = clusterChain + "MASQUERADENONPOD" // kube-proxy removes what is called so and is none of its own
	kubeCanary    = "KUBE-PROXY-CANARY"
	kubeProbe     = "KUBE-PROXY-PROBE"
)

// The beginnings of the names of a row's own chains.
const (
	clusterChain  = "KUBE-SVC-"
	localChain    = "KUBE-SVL-"
	externalChain = "KUBE-EXT-"
	sourceChain   = "KUBE-FW-"
	endpointChain = "KUBE-SEP-"

	oldExternalChain = "KUBE-XLB-" // of kube-proxy before 1.24, for what is EXT and SVL now
)

// rowChainPrefixes lists them: chains go to those that are listed before them.
var rowChainPrefixes = []string{endpointChain, clusterChain, localChain, externalChain, oldExternalChain, sourceChain}

// The chains of kube-proxy's ipvs mode that are in two tables.
const (
	ipvsNodePort     = "KUBE-NODE-PORT"
	ipvsLoadBalancer = "KUBE-LOAD-BALANCER"
)

// ownChains lists, by table, the chains of kube-proxy's iptables and ipvs modes
// and ours, which have the same names and a few more, but for those of rows.
var ownChains = map[string][]string{
	nat: {kubeServices, kubePost, kubeMark, kubeNodePorts, kubeCanary, kubeProbe, ipvsNodePort, ipvsLoadBalancer},
	filter: {
		kubeServices, kubeForward, kubeFirewall, kubeExternal, kubeNodePorts, kubeAddresses, kubeCanary,
		ipvsNodePort, ipvsLoadBalancer, "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER", "KUBE-SOURCE-RANGES-FIREWALL",
	},
	mangle: {kubeCanary},
}

// owns reports whether a chain is kube-proxy's or ours. Names are exact, since
// others use the prefix: kubelet has KUBE-FIREWALL and KUBE-MARK-DROP, and chains
// of one name may be kube-proxy's in one table and another program's in another.
func owns(table, chain string) bool {
	return slices.Contains(ownChains[table], chain) || table == nat && isRowChain(chain)
}

// rowChainKind returns which of rowChainPrefixes a chain of nat that belongs to a
// row or an endpoint begins with; -1 if it is none.
func rowChainKind(chain string) int {
	return slices.IndexFunc(rowChainPrefixes, func(prefix string) bool {
		hash, ok := strings.CutPrefix(chain, prefix)
		return ok && len(hash) == hashLength && strings.Trim(hash, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
	})
}

func isRowChain(chain string) bool { return rowChainKind(chain) >= 0 }

// isEntry reports whether a rule of a built-in chain is one by which we or
// kube-proxy enter our chains. Other rules that go to them are not: marking for
// masquerade is a service that others may use.
func isEntry(table, rule string) bool {
	to := ipt.Target(rule)
	return owns(table, to) && !isRowChain(to) && to != kubeMark && to != ipvsLoadBalancer
}

// hashLength is how much of a hash a chain's name has.
const hashLength = 16

// hash returns the part of a chain's name that tells rows, and their endpoints,
// apart.
func hash(k proxy.PortKey, endpoint string) string {
	sum := sha256.Sum256([]byte(portName(k) + strings.ToLower(k.Protocol.String()) + endpoint))
	return base32.StdEncoding.EncodeToString(sum[:])[:hashLength]
}

// portName returns the service port's name as comments have it.
func portName(k proxy.PortKey) string {
	name := k.Namespace + "/" + k.Name
	if k.Port != "" {
		name += ":" + k.Port
	}
	return name
}

// comment returns a match that always matches and says something. Characters
// that would need quoting within the quotes have no place in names.
func comment(text string) string {
	const most = 255 // that the kernel takes
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune(`"'\`, r) {
			return '_'
		}
		return r
	}, text)
	return `-m comment --comment "` + clean[:min(len(clean), most)] + `" `
}
