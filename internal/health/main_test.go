package health

import (
	"context"
	"testing"

	"go.uber.org/goleak"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// logged returns a context that ends with the test, or with stop, and what was
// logged with it.
func logged(t *testing.T) (ctx context.Context, stop context.CancelFunc, log func() string) {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(2)))
	ctx, stop = context.WithCancel(klog.NewContext(t.Context(), logger))
	return ctx, stop, func() string { return logger.GetSink().(ktesting.Underlier).GetBuffer().String() }
}
