package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"slices"
	"strings"

	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// The tables we write, in the order in which they are written.
const (
	filter = "filter"
	nat    = "nat"
	mangle = "mangle"
)

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

// maxComment is the longest comment that the kernel takes.
const maxComment = 255

// comment returns a match that always matches and says something. Characters
// that would need quoting within the quotes have no place in names.
func comment(text string) string {
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune(`"'\`, r) {
			return '_'
		}
		return r
	}, text)
	return `-m comment --comment "` + clean[:min(len(clean), maxComment)] + `" `
}
