// Package engine keeps the kernel at what the API objects ask for. It feeds
// what a source delivers to the resolver's trackers, lets the runner choose the
// moment, and takes each resolved step to the dataplane:
//
//	source -> trackers -> runner -> resolver -> dirty rows -> dataplane -> observers
//
// It owns everything that can go wrong between them: the order of the start,
// retries, rows the kernel refuses, and rules that another process has changed.
// It knows neither which dataplane it drives nor where objects come from, and
// decides nothing about traffic.
package engine
