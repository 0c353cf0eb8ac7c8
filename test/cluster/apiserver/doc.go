// Package apiserver is an API server in memory, for machines that a real one with
// its etcd is too heavy for: it lists, watches and takes the kinds of objects that
// service proxies read and tests write, in JSON and in the binary form that proxies
// ask for. There are no users, no validation and no conflicts of versions; of what
// a real one fills in, Services get what proxies read.
package apiserver
