// Package hns talks to the Host Networking Service (HNS) of Windows: networks, the endpoints on
// them, and load balancers, which send connections to endpoints. [Service] is the implementation
// for Windows, package hnstest has one in memory; one contract test checks both. There are no
// transactions: each call takes effect by itself.
package hns
