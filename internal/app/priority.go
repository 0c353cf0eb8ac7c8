package app

import (
	"fmt"
	"slices"
	"strings"
)

// priorityClasses are the names of Windows' priority classes, the highest first, as
// kubelet's flag has them; priorityValues are Windows' numbers for them.
var (
	priorityClasses = []string{
		"REALTIME_PRIORITY_CLASS", "HIGH_PRIORITY_CLASS", "ABOVE_NORMAL_PRIORITY_CLASS",
		normalPriority, "BELOW_NORMAL_PRIORITY_CLASS", "IDLE_PRIORITY_CLASS",
	}
	priorityValues = []uint32{0x100, 0x80, 0x8000, 0x20, 0x4000, 0x40}
)

// normalPriority is the default class of a process.
const normalPriority = "NORMAL_PRIORITY_CLASS"

// priority returns Windows' number for the priority class.
func (o *windowsOptions) priority() (uint32, error) {
	if i := slices.Index(priorityClasses, o.PriorityClass); i >= 0 {
		return priorityValues[i], nil
	}
	return 0, fmt.Errorf("--windows-priorityclass %q: no such class; classes: %s", o.PriorityClass, strings.Join(priorityClasses, ", "))
}
