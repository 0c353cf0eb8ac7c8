// Package windows tests the whole sluice.exe under Wine, with the Host Networking Service of
// package test/wine: what it requests from a Windows node.
package windows
