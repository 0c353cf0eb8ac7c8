package app

import (
	"fmt"
	"strings"
)

// priorityClasses are those that Windows has for processes, the highest first.
// kubelet's flag has the same names.
var priorityClasses = []struct {
	name  string
	value uint32
}{
	{"REALTIME_PRIORITY_CLASS", 0x100},
	{"HIGH_PRIORITY_CLASS", 0x80},
	{"ABOVE_NORMAL_PRIORITY_CLASS", 0x8000},
	{normalPriority, 0x20},
	{"BELOW_NORMAL_PRIORITY_CLASS", 0x4000},
	{"IDLE_PRIORITY_CLASS", 0x40},
}

// normalPriority is what processes have unless told otherwise.
const normalPriority = "NORMAL_PRIORITY_CLASS"

func priorityNames() string {
	var names []string
	for _, c := range priorityClasses {
		names = append(names, c.name)
	}
	return strings.Join(names, ", ")
}

// priority returns what Windows calls the class of the options.
func (o *windowsOptions) priority() (uint32, error) {
	for _, c := range priorityClasses {
		if c.name == o.PriorityClass {
			return c.value, nil
		}
	}
	return 0, fmt.Errorf("--windows-priorityclass %q: no such class; classes: %s", o.PriorityClass, priorityNames())
}
