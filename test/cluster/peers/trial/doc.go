// Package trial measures one service proxy after the other from the outside: on
// a fresh node of its own, against one loaded API server, by what connections
// see and what the kernel says of the process. It also measures the floor, which
// is the same without a proxy.
//
// It trusts nothing that a proxy says of itself, and does not judge the figures.
// A proxy that fails costs its own figures only.
package trial
