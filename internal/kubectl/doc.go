// Package kubectl implements kubectl sluice, which asks the daemon of one node, or of
// all nodes, and shows where they differ.
//
// A daemon serves its API at a unix socket in its pod. The plugin runs sluice
// dial-stdio in the pod, through the API server and with the user's own permissions,
// and uses the streams of that process as a connection:
//
//	kubectl-sluice - API server - kubelet - sluice dial-stdio - socket - daemon
//
// It knows nothing about the daemon except its API, and runs on every operating
// system.
package kubectl
