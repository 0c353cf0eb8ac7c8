// Package bugreport packs what somebody needs who is asked for help from afar:
// what the daemon tells of itself, its rules, metrics and configuration, and what
// the kernel is like.
//
// It reads no kubeconfig, no environment and no key. Whatever goes in passes
// redact first, as a command line, a log or an error may quote what is secret.
// What cannot be had is noted in the report, and is no reason to fail.
package bugreport
