// Package informer is the Source that watches the API server.
//
// Selectors make the server leave out Services of other proxies, headless Services and
// their slices, and other Nodes. Objects are passed on and not kept, so that nothing is
// in memory twice. A watch that fails is logged in one line and retried for ever; the
// last known objects stay in force. The package knows client-go and package source; it
// must not know what the objects are used for.
package informer
