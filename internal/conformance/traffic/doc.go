// Package traffic opens connections and answers them inside network namespaces, for the lab, the
// demo and the benchmarks.
//
//   - [Namespace.Listen] answers TCP, UDP and SCTP on one address, and
//     [Namespace.Probe] tries many connections concurrently and reports the fate of
//     each: answered, refused, reset or silence.
//   - [Ask] and [Connect] make one connection with the least overhead, plain
//     blocking system calls, so that it can be measured.
//
// Every answer contains the address that was reached and the client address seen there. The package
// knows nothing of Services or of any way to program a kernel.
package traffic
