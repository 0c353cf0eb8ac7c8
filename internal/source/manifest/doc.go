// Package manifest is the Source that reads a folder of manifests and watches it: YAML
// or JSON, several documents per file, Lists, subfolders. It makes the proxy usable
// without a cluster, and is the input of tests and of the demo.
//
//	file -> documents -> objects -> apiobject.Check -> trimmed objects
//	                                    |
//	                                    +-> Problems: file, document, line, field, reason
//
// A problem is logged once, in one line, and again when it is resolved. If an object
// cannot be read, its last version stays in force, so that a half-written file does not
// interrupt traffic. The package must not know what the objects are used for.
package manifest
