// Package iptables renders the wanted state as chains and rules of iptables, in
// either of its variants, with kube-proxy's names for chains.
//
// A row ([proxy.ServicePort]) has its own chains in table nat, and single rules in
// chains that all rows share. A step writes the difference between the rules of the
// old and of the new row: one iptables-restore --noflush per family, and a second
// one if rules that refused a row are removed because the row is forwarded now.
// The path of the first packet of a connection:
//
//	nat PREROUTING, OUTPUT
//	  KUBE-SERVICES            one rule per frontend address
//	    KUBE-FW-HASH           a LoadBalancer with source ranges: only allowed clients continue
//	    KUBE-EXT-HASH          the external policy: mark for masquerade, or short-circuit
//	    KUBE-SVC-, KUBE-SVL-   choose among the endpoints of the cluster, or of this node
//	      KUBE-SEP-HASH        mark hairpin traffic, remember the client, DNAT; without session
//	                           affinity, endpoints on other nodes have no such chain
//	    KUBE-NODEPORTS         last, to an address of the node: one rule per NodePort
//	filter INPUT, FORWARD, OUTPUT, new connections
//	  KUBE-EXTERNAL-SERVICES   INPUT, FORWARD: other frontends without an endpoint: reject or drop
//	  KUBE-SERVICES            FORWARD, OUTPUT: ClusterIPs without an endpoint
//	    KUBE-EXTERNAL-SERVICES packets that the node itself sends
//	    KUBE-CLUSTER-IPS       other ports of a ClusterIP: reject
//	                           other addresses of a ServiceCIDR: drop
//	  KUBE-PROXY-FIREWALL      not translated, to a frontend with source ranges: drop
//	  KUBE-NODEPORTS           INPUT: health checks, NodePorts without an endpoint
//	  KUBE-FORWARD             FORWARD: accept the traffic of Services
//	nat POSTROUTING
//	  KUBE-POSTROUTING         marked: masquerade
//
// Rules are written exactly as iptables-save prints them, so that Sync can compare
// text. All chains with kube-proxy's names count as ours, which is how we take over
// from it. The package knows nothing about Kubernetes objects.
package iptables
