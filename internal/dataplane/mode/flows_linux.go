package mode

import (
	"fmt"

	"sluice/internal/kernel/ct"
)

// OpenFlows opens connection tracking. It is Flows of modes that translate by it.
func OpenFlows() (ct.Interface, error) {
	c, err := ct.Open()
	if err != nil {
		return nil, fmt.Errorf("open connection tracking: %w", err)
	}
	return c, nil
}

// OpenEnds opens the events of flows that end. It is Ends of the same modes.
func OpenEnds() (ct.Ends, error) {
	e, err := ct.OpenEnds()
	if err != nil {
		return nil, fmt.Errorf("open events of connection tracking: %w", err)
	}
	return e, nil
}
