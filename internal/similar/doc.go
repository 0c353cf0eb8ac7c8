// Package similar finds the names that a mistyped one may stand for.
//
// It must not know what is named.
package similar
