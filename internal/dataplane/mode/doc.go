// Package mode defines what a mode is: the name, properties and functions by which a package
// below dataplane presents itself to the daemon. The table of modes is in package dataplane;
// this package knows no mode.
package mode
