package app

import (
	"context"
	"fmt"
	"os"

	"k8s.io/klog/v2"

	"sluice/internal/config"
)

// writeConfig writes the configuration in force as a file for --config.
func (o *Options) writeConfig(ctx context.Context, c config.Configuration) error {
	data, err := config.Encode(c.Object)
	if err != nil {
		return fmt.Errorf("encode the configuration: %w", err)
	}
	if err := os.WriteFile(o.WriteConfigTo, data, 0o644); err != nil {
		return fmt.Errorf("--write-config-to %q: %w", o.WriteConfigTo, err)
	}
	klog.FromContext(ctx).Info("Wrote the configuration in force", "file", o.WriteConfigTo)
	return nil
}
