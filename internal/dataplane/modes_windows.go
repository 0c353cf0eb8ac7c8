package dataplane

import "sluice/internal/dataplane/kernelspace"

// table lists the modes of this system.
func table() []Mode { return tell([]Mode{kernelspace.Mode()}) }
