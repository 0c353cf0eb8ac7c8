// Package localnet has what all modes share about kernel setting route_localnet, which lets
// connections from 127.0.0.1 to NodePorts reach endpoints: who set it, when to set it and
// when to reset it.
//
// While route_localnet is on and no rule guards loopback, neighbouring hosts can reach what
// listens on loopback addresses (CVE-2020-8558). Therefore the guard is always added before
// the setting is switched on, and removed after it is switched off. If a service proxy has
// set route_localnet, the comment of the guard carries a note of it, for the next daemon,
// for another mode and for a clean-up. Without the note, the setting was on before any
// service proxy came, and stays on.
//
// The package knows no rules: each mode has its own guard.
package localnet
