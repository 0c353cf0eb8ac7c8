package app

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
	logsapi "k8s.io/component-base/logs/api/v1"

	"sluice/internal/config"
)

// fileInput returns what the configuration file says, with the flags that win
// over it.
func (o *Options) fileInput() (config.Input, []notice, error) {
	data, err := os.ReadFile(o.ConfigFile)
	if err != nil {
		return config.Input{}, nil, fmt.Errorf("--config %q: %w", o.ConfigFile, err)
	}
	in, warnings, err := config.Decode(data)
	if err != nil {
		return config.Input{}, nil, fmt.Errorf("--config %q: %w", o.ConfigFile, err)
	}
	var notices []notice
	for _, w := range warnings {
		notices = append(notices, notice{
			"A part of the configuration file is unknown or there twice",
			[]any{"file", o.ConfigFile, "part", w},
		})
	}
	if o.HostnameOverride != "" {
		in.Object.HostnameOverride = o.HostnameOverride
	}
	if err := o.overlayLogging(&in.Object.Logging); err != nil {
		return config.Input{}, nil, err
	}
	return in, notices, nil
}

// overruled names the flags of the command line that the file makes void.
func (o *Options) overruled() []notice {
	if o.ConfigFile == "" {
		return nil
	}
	var notices []notice
	o.visitGiven(func(f *pflag.Flag) {
		if _, overruled := fieldOf(f); overruled {
			notices = append(notices, notice{
				"A flag is ignored, the configuration file decides",
				[]any{"flag", "--" + f.Name, "value", f.Value.String(), "file", o.ConfigFile},
			})
		}
	})
	return notices
}

// overlayLogging lets each logging flag win over what the file says. Lists of
// modules are joined, those of the flag first.
func (o *Options) overlayLogging(file *logsapi.LoggingConfiguration) error {
	logsapi.SetRecommendedLoggingConfiguration(file)
	said := *file.DeepCopy()
	over := pflag.NewFlagSet("logging", pflag.ContinueOnError)
	logsapi.AddFlags(file, over)
	*file = said // Adding a flag writes its default.
	file.VModule = nil
	var err error
	o.visitGiven(func(f *pflag.Flag) {
		if over.Lookup(f.Name) != nil && err == nil {
			err = over.Set(f.Name, f.Value.String())
		}
	})
	file.VModule = append(file.VModule, said.VModule...)
	return err
}

// validateLogging checks how to log, which is done later.
func (o *Options) validateLogging(c *config.Configuration) error {
	gates, err := config.NewGates(c.FeatureGates)
	if err != nil {
		return o.explain(fmt.Errorf("feature gates: %w", err))
	}
	if errs := logsapi.Validate(o.Logging, gates, nil); len(errs) > 0 {
		return fmt.Errorf("logging flags: %w", errs.ToAggregate())
	}
	if errs := logsapi.Validate(&c.Logging, gates, field.NewPath("logging")); len(errs) > 0 {
		return o.explain(errs.ToAggregate())
	}
	return nil
}
