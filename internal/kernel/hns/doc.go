// Package hns speaks to the Host Networking Service of Windows: networks, the
// endpoints on them, and load balancers, which send connections to endpoints.
// [Service] is that of Windows, package hnstest has memory, and one contract test
// holds both. There are no transactions: each call is done by itself.
package hns
