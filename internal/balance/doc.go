// Package balance says which endpoint a new connection gets, for modes whose
// connections pass a process: the row by its frontend, the endpoint as the row
// wants it chosen, for a client that is remembered the one it had.
//
// It knows neither sockets nor the kernel. Any goroutine may use it.
package balance
