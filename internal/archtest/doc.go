// Package archtest contains the tests that read the source itself: the import table, package
// comments, and house rules that a compiler does not check. It has no other code.
package archtest
