// Package manifest is the Source that reads a folder of manifests and watches
// it: YAML or JSON, several documents a file, Lists, subfolders. It makes the
// proxy useful without a cluster and is the input of tests and of the demo.
//
//	file -> documents -> objects -> apiobject.Check -> trimmed objects
//	                                    |
//	                                    +-> Problems: file, document, line, field, reason
//
// What is wrong is named in one line, once, and again when it is mended. An
// object that cannot be read leaves what it was before in force: nothing stops
// forwarding because of a half-written file. The package must not know what is
// made of the objects.
package manifest
