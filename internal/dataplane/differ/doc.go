// Package differ computes and writes the difference between what a dataplane
// has in the kernel and what is wanted. Every mode uses it.
//
// To the differ, the kernel holds objects: an ID identifies an object, a value
// describes it. A mode supplies a [Mode]: what rows and the node render to, in
// what order objects are added and removed, how they are listed and how they are
// written. The [Differ] remembers which rows are in force and how many rows share
// an object. Apply compares the old and the new rendering of the rows that
// changed; Sync compares what the kernel lists with the rendering of all rows.
// Either way the result is [Changes]. If they are small they are written in one
// part, otherwise in several parts, ordered so that no intermediate state lacks
// an object that another one needs. If the kernel refuses a row, the row is left
// out and the rest is written again.
//
// The cost of replacing one endpoint of a large row does not depend on the size
// of the row if the mode's Row function renders only what differs between the two
// versions of the row.
package differ
