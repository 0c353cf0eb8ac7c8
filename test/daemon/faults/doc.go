// Package faults tests what happens to the daemon and its machine: kills, stops, failing system
// calls, clock jumps, too little memory, very many objects, a second daemon, and random histories.
// It has no other code.
package faults
