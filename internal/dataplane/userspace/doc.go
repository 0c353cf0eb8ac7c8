// Package userspace relays connections itself: rules redirect them, untranslated,
// to sockets of this process, which connects to an endpoint and copies the bytes.
// The rules are those of package nftables, which implement all policy; this
// package only chooses endpoints.
//
//	client                 rules (tproxy)               endpoint
//	  | ----- SYN to VIP:80 ---> listener by scope          |
//	  |                          and masquerading           |
//	  |                 worker: accept, find the row        |
//	  |                 by VIP:80, choose an endpoint       |
//	  |                          connect, from the client's |
//	  |                          address or the node's ---> | refused or timed out: try another
//	  | <--- bytes -----  splice through a pipe  ---------> |
//
// A worker is a thread with an epoll instance. All its system calls are
// non-blocking, so no connection waits for another; an idle connection costs two
// sockets and less than a kilobyte. A UDP session is a socket connected to its
// endpoint; the datagrams of all clients arrive at the listeners.
//
// A daemon that starts takes over the listeners, connections, sessions and
// session affinity of its predecessor, if that is still running ([Dataplane.Run]).
package userspace
