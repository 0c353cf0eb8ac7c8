// Package mode says what a mode is: how a folder below dataplane tells the
// program what it can do, what it is called and how it is opened and cleaned up.
// The table of modes is in package dataplane; this one knows none of them.
package mode
