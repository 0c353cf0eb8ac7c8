// Package controlplane runs a real etcd and a real kube-apiserver, with TLS and RBAC, inside one
// host of a lab. There is no controller manager, no scheduler and no kubelet: its users write the
// objects that these would write. In a virtual machine, where they are too slow, an API server in
// memory replaces them.
//
// It knows nothing of proxies.
package controlplane
