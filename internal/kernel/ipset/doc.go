// Package ipset lists and destroys the kernel's IP sets by name, in the network
// namespace of the calling thread. No set is made by us: other service proxies
// leave some. No module is loaded to look for what cannot be there without it.
package ipset
