// Package wine runs Windows programs on Linux for tests, and has the Host
// Networking Service for them, which Wine lacks: libraries of our own send what a
// program asks to the test, which answers from memory. So the program is that of
// Windows to the last byte. How the service behaves is what we believe of
// Windows, not Windows: the contract test of internal/kernel/hns, compiled for
// Windows and run on a node with SLUICE_TEST_HNS_NETWORK set, tells whether it is
// true.
//
// Wine 8 has no UDP sockets for Go, and its os.RemoveAll fails, so t.TempDir does.
package wine
