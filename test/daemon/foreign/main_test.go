package foreign

import (
	"testing"

	"sluice/test/daemon/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }
