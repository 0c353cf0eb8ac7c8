// Package proxy defines the model that all other packages share: service ports,
// endpoints, the node and packets, and what must happen to a packet.
//
// The resolver produces these types, dataplanes render them, and the oracle
// ([State.Outcome]) evaluates them. The package knows neither Kubernetes objects
// nor the kernel, and imports the standard library only.
package proxy
