// Package status serves the daemon's read-only status API: it converts what the
// engine knows to the types of statusapi, one page at a time.
//
// The daemon runs on one thread, and syncs wait while a reader holds the engine. So
// nothing here holds the engine for longer than it takes to read a few hundred
// Services, and no response is longer than a page.
package status
