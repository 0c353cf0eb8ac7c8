// Package churn runs random histories with a whole daemon. It knows how to start and kill a daemon
// and how to ask whether it has seen everything; a Source provides the objects.
package churn
