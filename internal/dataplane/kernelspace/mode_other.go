//go:build !windows

package kernelspace

import "sluice/internal/dataplane/mode"

// Mode is what there is of the kernelspace mode where HNS is not: it can be
// rendered.
func Mode() mode.Mode {
	m := Over(nil)
	return mode.Mode{Name: m.Name, Balancing: m.Balancing, PreservesDestination: m.PreservesDestination, Render: m.Render}
}
