// Package health has the HTTP servers of the proxy:
//
//	ProxyHealth    /healthz and /livez: is the kernel in the wanted state
//	ServiceChecks  the health-check node ports: does this node have endpoints of a Service
//	MetricsHandler /metrics, /proxyMode, /configz, profiles and the log verbosity
//	Server         an HTTP server whose address may change while it serves
//
// Nothing here can fail or delay a sync. No response is written while a lock is held,
// and nothing listens on more addresses than configured. The package knows no
// dataplane, and of API objects only the Node.
package health
