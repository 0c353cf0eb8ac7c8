// Package kubectl is kubectl sluice: it asks the daemons of one node or of all,
// and shows where they differ.
//
// A daemon answers at a socket in its pod. The plugin runs sluice dial-stdio in
// there, through the API server and with the user's own rights, and takes the
// streams of that process for a connection:
//
//	kubectl-sluice - API server - kubelet - sluice dial-stdio - socket - daemon
//
// It knows nothing of the daemon but its API, and runs on every system.
package kubectl
