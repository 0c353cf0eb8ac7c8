// Package zpages answers /statusz and /flagz as Kubernetes components do: in
// plain text for people and, for who asks for that, as an object of group
// config.k8s.io in JSON or YAML.
//
// It knows how such pages are asked for and written. What stands on them is
// told by whoever makes them.
package zpages
