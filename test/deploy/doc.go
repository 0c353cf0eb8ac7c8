// Package deploy tests what is under deploy/ without a cluster and without the
// programs that read it: the Kustomize base and the Helm chart are the same,
// strictly typed objects; they ask for no more privileges than they say, and
// the real daemon runs with those; the Dockerfile's build works on the files it
// would be given. It has no other code.
package deploy
