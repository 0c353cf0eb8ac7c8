// Package ipset lists and destroys the kernel's IP sets by name, in the network namespace
// of the calling thread. We create no sets, but other service proxies leave some. The
// package does not cause the kernel to load module ip_set: without it there are no sets.
package ipset
