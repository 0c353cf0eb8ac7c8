// Package zpages serves /statusz and /flagz as Kubernetes components do: as plain text
// or, if the client accepts it, as an object of group config.k8s.io in JSON or YAML.
//
// It implements content negotiation and encoding. The content comes from the caller.
package zpages
