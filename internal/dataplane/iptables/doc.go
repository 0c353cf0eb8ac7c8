// Package iptables renders the desired state as chains and rules of iptables,
// in either of its variants, with kube-proxy's names for chains.
//
// A row ([proxy.ServicePort]) becomes chains of its own in table nat and single
// rules in chains that rows share. A step becomes the difference of the old
// row's rules and the new row's, in one iptables-restore --noflush per family, and a
// second one where a row that was refused is forwarded now.
// The path of a connection's first packet:
//
//	nat PREROUTING, OUTPUT
//	  KUBE-SERVICES            one rule per frontend address
//	    KUBE-FW-HASH           allowed clients of a LoadBalancer go on, others stay as they are
//	    KUBE-EXT-HASH          the external policy: mark for masquerade, or the short-circuits
//	    KUBE-SVC-, KUBE-SVL-   choose among the endpoints of the cluster, or of this node
//	      KUBE-SEP-HASH        mark a pod that is sent to itself, or remember the client; DNAT.
//	                           Endpoints of other nodes have none without affinity
//	    KUBE-NODEPORTS         last, to a node address: one rule per NodePort
//	filter INPUT, FORWARD, OUTPUT, new connections
//	  KUBE-EXTERNAL-SERVICES   INPUT, FORWARD: other frontends without an endpoint: reject or drop
//	  KUBE-SERVICES            FORWARD, OUTPUT: ClusterIPs without an endpoint
//	    KUBE-EXTERNAL-SERVICES the node's own packets come here by this way
//	    KUBE-CLUSTER-IPS       other ports of a ClusterIP: reject
//	                           other addresses of a ServiceCIDR: drop
//	  KUBE-PROXY-FIREWALL      still to a restricted frontend: drop
//	  KUBE-NODEPORTS           INPUT: health checks, NodePorts without an endpoint
//	  KUBE-FORWARD             FORWARD: what is ours may pass
//	nat POSTROUTING
//	  KUBE-POSTROUTING         marked: masquerade
//
// Every rule is written as iptables-save prints it, so that Sync compares text.
// What carries kube-proxy's names is ours: that is how we take over from it.
// The package knows nothing of Kubernetes objects.
package iptables
