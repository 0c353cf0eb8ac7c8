// Package bugreport collects what is needed to help an operator remotely, in one
// archive: the daemon's status, its rules, metrics and configuration, and facts about
// the kernel.
//
// It reads no kubeconfig, no environment and no keys. Everything passes redact first,
// because a command line, a log or an error may contain secrets. What cannot be read is
// noted in the report, and is not an error.
package bugreport
