// Package command tests the daemon's command: its arguments, configuration file and manifests, its
// servers, the privileges that it needs, and what it prepares, leaves and cleans up on the node. It
// has no other code.
package command
