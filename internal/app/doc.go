// Package app is the daemon: its command line ([Options]), the order in which
// its components are validated, opened and connected, and their lifetime
// ([ProxyServer]).
//
// It makes no decisions about traffic. Errors in the command line, in a file or
// in the kernel are reported in one line, before anything is changed.
package app
