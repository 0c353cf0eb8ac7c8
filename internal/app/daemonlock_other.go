//go:build !linux

package app

import "context"

// turnName is nothing that others could have.
const turnName = ""

// turn is the right of one daemon to write the rules. There is no telling others here.
type turn struct{ name, self string }

func (turn) await(context.Context) (release func()) { return func() {} }
