// Package windows runs the whole sluice.exe under Wine, over the Host Networking
// Service of package test/wine: what a node of Windows would be asked for.
package windows
