// Package apiclient is a client of the API server for the few API groups that a service
// proxy needs. client-go's typed clients are not used because they link every API group
// of Kubernetes, which costs memory on every node.
package apiclient
