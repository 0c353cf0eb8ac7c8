// Package pki makes the certificates and the kubeconfig files of a test
// cluster. It knows nothing of the programs that read them.
package pki
