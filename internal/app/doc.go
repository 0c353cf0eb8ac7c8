// Package app is the daemon: its command line ([Options]), the order in which
// its parts are checked, opened and joined, and their lifetime ([ProxyServer]).
//
// It wires and decides nothing about traffic. What is wrong with the command
// line, with a file or with the kernel is said in one line before anything has
// been changed.
package app
