// Package sysctl reads and writes kernel settings: the files below /proc/sys, and other
// files of /sys and /proc that hold one value.
//
// [Kernel] accesses the kernel's settings; package sysctltest has a fake that keeps them
// in memory. One contract test checks both. The package knows no setting by name and does
// not log.
package sysctl
