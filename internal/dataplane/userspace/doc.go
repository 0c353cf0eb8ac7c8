// Package userspace carries connections itself: rules lead them, as they are, to
// sockets of this process, which connects to an endpoint and moves the bytes.
// Nothing is translated. The rules are those of package nftables, which decide
// about all policy; this package chooses endpoints and knows no policy.
//
//	client                 rules (tproxy)               endpoint
//	  | ----- SYN to VIP:80 ---> listener by scope          |
//	  |                          and masquerading           |
//	  |                 worker: accept, find the row        |
//	  |                 by VIP:80, choose an endpoint       |
//	  |                          connect, from the client's |
//	  |                          address or the node's ---> | refused, silent: another one
//	  | <--- bytes ----  splice by way of a pipe  --------> |
//
// A worker is a thread with an epoll instance: all it does is non-blocking, so
// one connection never waits for another, and an idle one costs two sockets and
// less than a kilobyte. A UDP session is a socket to its endpoint; datagrams of
// clients all come to the listeners.
//
// A daemon that starts takes the listeners, connections, sessions and remembered
// clients over from the one before it, if that still runs ([Dataplane.Run]).
package userspace
