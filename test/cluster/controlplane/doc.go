// Package controlplane runs a real etcd and a real kube-apiserver, with TLS and
// RBAC, inside one host of a lab. There is no controller manager, no scheduler
// and no kubelet: whoever uses it writes the objects that these would write.
// Where they are too heavy, in a virtual machine, an API server in memory takes
// their place.
//
// It knows nothing of proxies.
package controlplane
