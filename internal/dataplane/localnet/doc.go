// Package localnet is what all modes share about the host's setting by which
// connections of 127.0.0.1 to NodePorts reach endpoints, route_localnet: who
// set it, when it is set and when it is put back.
//
// Where it is on and no rule guards loopback, the host's neighbours reach what
// listens there (CVE-2020-8558). So the order is always the same: the guard
// comes before the setting is on, and goes after it is off. The guard's comment
// carries the note that the setting is a service proxy's, for the next daemon,
// the next mode and the one that removes the rules; without the note it was on
// before any of them came, and stays on.
//
// The package knows no rules: each mode has a guard of its own.
package localnet
