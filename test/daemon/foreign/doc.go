// Package foreign tests what other programs do to the node's rules: ours are repaired, theirs are
// left alone. It has no other code.
package foreign
