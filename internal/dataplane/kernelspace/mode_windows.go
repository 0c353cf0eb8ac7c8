package kernelspace

import (
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/hns"
)

// Mode is the mode over the service of this node.
func Mode() mode.Mode { return Over(hns.Service{}) }
