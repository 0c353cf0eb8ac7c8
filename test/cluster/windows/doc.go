// Package windows plays the same objects to kube-proxy for Windows and to mode
// kernelspace, each under Wine with a Host Networking Service of its own, and
// compares what the services have in the end and how often they were asked.
package windows
