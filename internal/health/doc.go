// Package health answers those who ask over HTTP how this proxy is:
//
//	ProxyHealth    /healthz and /livez: is the kernel what the API asks for
//	ServiceChecks  a port per Service: has this node endpoints for its load balancer
//	MetricsHandler /metrics, /proxyMode, /configz and what a developer looks at
//	Server         one address, which may change while requests are answered
//
// It is told by the engine what happens and has no say in it: nothing here can
// fail or delay a sync. No answer is written while a lock is held, and nothing
// listens wider than it was told to. The package knows no dataplane, and of API
// objects only the Node.
package health
