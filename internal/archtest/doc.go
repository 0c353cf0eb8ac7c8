// Package archtest holds the tests that read the source itself: who may import
// whom, that every package says what it is for, and the house rules a compiler
// does not check. It has no other code.
package archtest
