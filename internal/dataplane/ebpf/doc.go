// Package ebpf implements mode ebpf: BPF programs attached to a cgroup translate a
// connection to a Service at its socket, before a packet is sent, where the nftables
// rules would give exactly the same result. All rules of mode nftables are in force
// underneath, and translate whatever the programs leave alone.
//
//	connect(2) or sendmsg(2) on a socket of the cgroup
//	        |
//	connect4/6, sendmsg4/6: is the daemon's lease valid?         -- no --+
//	        | yes                                                        |
//	is the destination a frontend, is the client's origin known,         |
//	and may connections of that origin be translated?            -- no --+
//	        | yes                                                        |
//	draw a slot: is its endpoint neither a frontend itself               |
//	nor the client?                                              -- no --+
//	        | yes                                                        |
//	the socket connects to the endpoint             the destination stays the Service,
//	        |                                       the rules translate its packets
//	getpeername4/6, recvmsg4/6: the peer is reported as the Service's address
package ebpf
