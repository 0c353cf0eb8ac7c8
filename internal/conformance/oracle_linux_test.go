package conformance

import "testing"

func TestOracle(t *testing.T) { RunOracle(t) }
