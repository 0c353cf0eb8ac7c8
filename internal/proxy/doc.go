// Package proxy is the project's language: what a service port, an endpoint, a
// node and a packet are to a service proxy, and what must happen to a packet.
//
// The resolver writes these types, dataplanes render them, the oracle
// ([State.Outcome]) answers from them. The package knows neither Kubernetes
// objects nor the kernel, and imports the standard library only.
package proxy
