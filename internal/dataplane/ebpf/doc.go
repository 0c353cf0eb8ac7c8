// Package ebpf is the ebpf mode: a connection to a Service is made to one of its
// endpoints by the socket itself, where that is exactly what the rules of the
// nftables mode would come to. Those are all there, and take what is in doubt.
package ebpf
