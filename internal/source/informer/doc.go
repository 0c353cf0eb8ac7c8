// Package informer is the Source that watches the API server.
//
// The server leaves out what other proxies serve, headless slices and other
// nodes, through selectors; what is left is passed on and not kept, so that
// nothing is held twice. A watch that breaks is named in one line and tried again
// for ever: the last known objects stay in force. The package knows client-go and
// package source; it must not know what is made of the objects.
package informer
