// Package wine runs Windows programs on Linux for tests, and provides the Host Networking Service
// (HNS), which Wine lacks: replacement DLLs forward the calls of a program to the test, which
// answers from memory. The programs themselves are unmodified Windows binaries. The simulated HNS
// behaves as we believe Windows does; the contract test of internal/kernel/hns verifies that when
// it is compiled for Windows and run on a node with SLUICE_TEST_HNS_NETWORK set.
//
// Wine 8 has no UDP sockets for Go, and os.RemoveAll fails there, so t.TempDir does too.
package wine
