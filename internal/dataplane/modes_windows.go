package dataplane

import "sluice/internal/dataplane/kernelspace"

// table returns the modes of this operating system.
func table() []Mode { return shareTraces([]Mode{kernelspace.Mode()}) }
