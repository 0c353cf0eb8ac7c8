//go:build !windows

package kernelspace

import "sluice/internal/dataplane/mode"

// Mode returns the kernelspace mode for systems without HNS: it can only be rendered.
func Mode() mode.Mode {
	m := ModeWith(nil)
	return mode.Mode{Name: m.Name, Balancing: m.Balancing, PreservesDestination: m.PreservesDestination, Render: m.Render}
}
