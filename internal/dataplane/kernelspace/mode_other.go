//go:build !windows

package kernelspace

import (
	"errors"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/hns"
)

// Mode is what there is of the kernelspace mode where HNS is not: it can be
// rendered.
func Mode() mode.Mode {
	m := Over(func() (hns.Interface, error) { return nil, errors.New("it is a part of Windows") })
	return mode.Mode{Name: m.Name, Balancing: m.Balancing, PreservesDestination: m.PreservesDestination, Render: m.Render}
}
