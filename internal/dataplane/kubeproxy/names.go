package kubeproxy

import (
	"slices"
	"strings"
)

const (
	// tableName is the table of the nftables mode, in both families.
	tableName = "kube-proxy"
	// linkName is the link that holds the Service addresses of the ipvs mode.
	linkName = "kube-ipvs0"
	// maxSetName is how much of its name the kernel lets an IP set keep.
	maxSetName = 31
)

// tables returns the iptables tables kube-proxy has chains in.
func tables() []string { return []string{"nat", "filter", "mangle"} }

// owner says which of kube-proxy's modes makes a chain.
type owner uint8

const (
	nobody owner = iota // no mode of kube-proxy
	shared              // both modes below
	iptablesMode
	ipvsMode
)

// Owns reports whether a chain of iptables is one of kube-proxy's, or of our
// iptables mode, which has the same names and a few more.
func Owns(table, chain string) bool { return chainOwner(table, chain) != nobody }

// chainOwner returns whose a chain is. Chains of one name may be kube-proxy's
// in one table and somebody else's in another.
func chainOwner(table, chain string) owner {
	if chain == "KUBE-PROXY-CANARY" && slices.Contains(tables(), table) {
		return iptablesMode
	}
	switch table {
	case "nat":
		switch chain {
		case "KUBE-SERVICES", "KUBE-POSTROUTING", "KUBE-MARK-MASQ":
			return shared
		case "KUBE-NODEPORTS", "KUBE-PROXY-PROBE": // the latter is ours alone
			return iptablesMode
		case "KUBE-NODE-PORT", "KUBE-LOAD-BALANCER":
			return ipvsMode
		}
		if isServiceChain(chain) {
			return iptablesMode
		}
	case "filter":
		switch chain {
		case "KUBE-FORWARD", "KUBE-PROXY-FIREWALL":
			return shared
		case "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-CLUSTER-IPS": // the last is ours alone
			return iptablesMode
		case "KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER", "KUBE-SOURCE-RANGES-FIREWALL":
			return ipvsMode
		}
	}
	return nobody
}

// isServiceChain reports whether a chain of nat is one of a service port or an
// endpoint: a prefix and sixteen characters of a base32 hash. Releases before
// 1.24 had XLB for what is EXT and SVL now.
func isServiceChain(chain string) bool {
	for _, kind := range []string{"SVC", "SVL", "FW", "EXT", "SEP", "XLB"} {
		hash, ok := strings.CutPrefix(chain, "KUBE-"+kind+"-")
		if ok && len(hash) == 16 && strings.Trim(hash, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == "" {
			return true
		}
	}
	return false
}

// isSet reports whether an IP set is one of the ipvs mode's.
func isSet(name string) bool {
	kinds := []string{
		"LOOP-BACK", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL", "LOAD-BALANCER", "LOAD-BALANCER-FW",
		"LOAD-BALANCER-LOCAL", "LOAD-BALANCER-SOURCE-IP", "LOAD-BALANCER-SOURCE-CIDR", "NODE-PORT-TCP",
		"NODE-PORT-LOCAL-TCP", "NODE-PORT-UDP", "NODE-PORT-LOCAL-UDP", "NODE-PORT-SCTP-HASH",
		"NODE-PORT-LOCAL-SCTP-HASH", "HEALTH-CHECK-NODE-PORT", "IPVS-IPS",
	}
	for _, kind := range kinds {
		for _, prefix := range []string{"KUBE-", "KUBE-6-"} {
			full := prefix + kind
			if name == full[:min(len(full), maxSetName)] {
				return true
			}
		}
	}
	return false
}
