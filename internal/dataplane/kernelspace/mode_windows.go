package kernelspace

import (
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/hns"
)

// Mode returns the kernelspace mode.
func Mode() mode.Mode { return ModeWith(hns.Service{}) }
