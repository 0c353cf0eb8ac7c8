package mode

import (
	"fmt"

	"sluice/internal/kernel/ct"
)

// OpenFlows opens connection tracking, for modes whose translations it keeps.
func OpenFlows() (ct.Interface, error) {
	c, err := ct.Open()
	if err != nil {
		return nil, fmt.Errorf("open connection tracking: %w", err)
	}
	return c, nil
}
