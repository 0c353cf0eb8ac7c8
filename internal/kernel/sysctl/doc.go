// Package sysctl reads and writes the kernel's settings: the files below
// /proc/sys, and others that hold one value in one line, as /sys and /proc have
// them.
//
// [Kernel] is the kernel, package sysctltest has memory; one contract test holds
// both. The package knows no setting by name and does not log.
package sysctl
