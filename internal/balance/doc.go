// Package balance chooses the endpoint of a new connection, for modes whose connections pass
// through a process. It finds the row by the frontend, and chooses an endpoint by the row's
// load-balancing method, or by session affinity for a client that is remembered.
//
// It knows neither sockets nor the kernel. All its types may be used by several goroutines.
package balance
