// Package podexec is what of a kubelet the API server needs for exec: it runs
// commands of pods, which here are programs of the test's own, with the streaming
// library of real container runtimes.
package podexec
