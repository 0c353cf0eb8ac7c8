// Package apiclient talks to the API server about the few groups that a service
// proxy needs. client-go's typed clients would do it, and bring every group of
// Kubernetes with them, into a program that is resident on every node.
package apiclient
