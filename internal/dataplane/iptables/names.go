package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"

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
)

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
