// Package differ brings what a dataplane has in the kernel from what is there
// to what is wanted, for every mode.
//
// What is in the kernel is objects: an ID says which, a value what it is like.
// A mode says, as a [Mode], what rows and the node render to, in what order
// objects come and go, how they are listed and how they are written. The
// [Differ] remembers which rows are in force and how many of them share an
// object. Apply takes the difference between the old and the new rendering of
// the rows that changed; Sync between what is listed and the rendering of all
// rows. Either way the outcome is [Changes], which are written in parts: one if
// it is small, else several in an order in which nothing is missing in between.
// A row that the kernel refuses is left out, and the rest is tried again.
//
// A mode that renders a large row as the difference of its two forms pays for
// an endpoint what an endpoint costs.
package differ
