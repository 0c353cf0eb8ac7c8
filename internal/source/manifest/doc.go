// Package manifest is the Source that reads a folder of manifests and watches
// it: YAML or JSON, several documents a file, Lists, subfolders. It makes the
// proxy useful without a cluster and is the input of tests and of the demo.
//
//	file -> documents -> objects -> defaults -> checks -> trimmed objects
//	                                    |
//	                                    +-> Problems: file, document, field, reason
//
// What is wrong is named in one line, once, and again when it is mended. An
// object that cannot be read leaves what it was before in force: nothing stops
// forwarding because of a half-written file. The package does the defaulting
// and the checks that the API server would do, as far as a proxy depends on
// them. It must not know what is made of the objects.
package manifest
