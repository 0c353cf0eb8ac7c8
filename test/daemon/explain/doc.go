// Package explain tests sluice explain and sluice status beside a running daemon: what they say is
// what packets do and what the kernel has. It has no other code.
package explain
