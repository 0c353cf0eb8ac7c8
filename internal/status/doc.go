// Package status answers the read-only API of the daemon: it turns what the
// engine knows into the types of statusapi, a page at a time.
//
// The daemon runs on one thread, and syncs wait while the engine is looked at.
// So nothing here holds the engine for longer than a few hundred Services take,
// and no answer is longer than a page.
package status
