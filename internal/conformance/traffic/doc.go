// Package traffic opens connections and answers them inside network namespaces:
// the one client and the one server of the lab, the demo and the benchmarks.
//
//   - [Namespace.Listen] answers TCP, UDP and SCTP on one address, and
//     [Namespace.Probe] tries many connections at once and says what became of
//     each: answered, refused, reset or nothing.
//   - [Ask] and [Connect] make one connection with the least work of their own,
//     plain blocking system calls, so that figures can be read from it.
//
// Every answer says which address was reached and which client it saw there. The
// package knows nothing of Services or of any way to program a kernel.
package traffic
