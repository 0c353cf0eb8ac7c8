// Package engine keeps the kernel in the state that the API objects describe. It
// passes events from a source to the resolver's trackers, lets the runner decide
// when to sync, and passes what changed to the dataplane:
//
//	source -> trackers -> runner -> resolver -> dirty rows -> dataplane -> observer
//
// It handles everything that can go wrong in between: objects that are not there yet
// at the start, failed syncs, rows that the kernel refuses, and rules that another
// process changed. It knows neither which dataplane it drives nor where objects come
// from, and decides nothing about traffic.
package engine
