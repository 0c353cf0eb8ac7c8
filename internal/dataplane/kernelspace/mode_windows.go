package kernelspace

import (
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/hns"
)

func Mode() mode.Mode { return Over(hns.Service{}) }
