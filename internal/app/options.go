package app

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/pflag"
	fieldpath "k8s.io/apimachinery/pkg/util/validation/field"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"sluice/internal/config"
	"sluice/internal/dataplane"
)

// Options are the flags as given.
type Options struct {
	// These count with and without a configuration file.
	ConfigFile       string
	WriteConfigTo    string
	Cleanup          bool
	InitOnly         bool
	Manifests        string
	Master           string
	HostnameOverride string
	Logging          *logsapi.LoggingConfiguration

	HealthzPort int32
	MetricsPort int32

	// object holds what flags say that a configuration file could say too, and
	// the default that help shows where no flag does.
	object  *v1alpha1.KubeProxyConfiguration
	groups  []flagGroup
	version versionFlag
}

// NewOptions returns the options of a command line without flags.
func NewOptions() *Options {
	o := &Options{
		Logging: logsapi.NewLoggingConfiguration(), object: config.FlagDefaults(),
		HealthzPort: config.HealthzPort, MetricsPort: config.MetricsPort,
	}
	o.groups = o.flagGroups()
	return o
}

// notice is a line for the log, said as soon as there is one.
type notice struct {
	message string
	facts   []any
}

// parsed is what flags and file say, read and checked.
type parsed struct {
	input   config.Input
	config  config.Configuration
	notices []notice
}

// read returns what flags and file ask for. A configuration that names no mode
// gets the given one. The error names every wrong flag or field and its value.
func (o *Options) read(unset config.ProxyMode) (parsed, error) {
	var p parsed
	var err error
	if o.ConfigFile == "" {
		p.input, p.notices = o.flagInput()
	} else if p.input, p.notices, err = o.fileInput(); err != nil {
		return parsed{}, err
	}
	p.config, err = p.input.Configuration(unset)
	wrong, _ := errors.AsType[config.FieldErrors](err)
	if _, err := dataplane.Of(p.config.Mode); err != nil {
		mode := &config.FieldError{Field: "mode", Value: string(p.config.Mode), Reason: err.Error()}
		wrong = append(config.FieldErrors{mode}, wrong...)
	}
	if len(wrong) > 0 {
		return parsed{}, o.explain(wrong)
	}
	if err := o.validateLogging(&p.config); err != nil {
		return parsed{}, err
	}
	p.notices = append(p.notices, gateNotices(&p.config)...)
	return p, nil
}

// flagInput returns what the flags say.
func (o *Options) flagInput() (config.Input, []notice) {
	in := config.Input{Flags: true, Given: map[string]bool{}}
	o.visitGiven(func(f *pflag.Flag) {
		if field := fieldOf(f); field != "" {
			in.Given[field] = true
			config.At(&in.Object, field).Set(config.At(o.object, field))
		}
	})
	in.Object.HostnameOverride = o.HostnameOverride
	in.Object.Logging = *o.Logging.DeepCopy()
	return in, o.foldPorts(&in)
}

// portFlags are deprecated: a port joins an address without one, and 0 switches
// the server off.
var portFlags = map[string]string{"healthz-port": "healthz-bind-address", "metrics-port": "metrics-bind-address"}

// foldPorts puts the deprecated port flags into the addresses.
func (o *Options) foldPorts(in *config.Input) []notice {
	var notices []notice
	o.visitGiven(func(f *pflag.Flag) {
		instead, port := portFlags[f.Name], f.Value.String()
		if instead == "" {
			return
		}
		notices = append(notices, notice{"A flag is deprecated", []any{"flag", "--" + f.Name, "instead", "--" + instead}})
		address := &in.Object.HealthzBindAddress
		if f.Name == "metrics-port" {
			address = &in.Object.MetricsBindAddress
		}
		ip, err := netip.ParseAddr(*address)
		switch {
		case port == "0":
			*address = config.None
		case err == nil:
			*address = net.JoinHostPort(ip.String(), port)
		default:
			// kube-proxy ignores the port too, and somebody relies on the port it has had.
			notices = append(notices, notice{
				"A flag changes nothing, the address has a port",
				[]any{"flag", "--" + f.Name, "address", "--" + instead + "=" + o.values()[instead]},
			})
		}
	})
	return notices
}

// values returns every flag and its value.
func (o *Options) values() map[string]string {
	out := map[string]string{}
	o.visit(func(f *pflag.Flag) { out[f.Name] = f.Value.String() })
	return out
}

// fileInput returns what the configuration file says, with the flags that win
// over it.
func (o *Options) fileInput() (config.Input, []notice, error) {
	data, err := os.ReadFile(o.ConfigFile)
	if err != nil {
		return config.Input{}, nil, o.inFile(err)
	}
	in, warnings, err := config.Decode(data)
	if err != nil {
		return config.Input{}, nil, o.inFile(err)
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
	return in, notices, o.overlayLogging(&in.Object.Logging)
}

// overruled names the flags of the command line that the file makes void.
func (o *Options) overruled() []notice {
	if o.ConfigFile == "" {
		return nil
	}
	var notices []notice
	o.visitGiven(func(f *pflag.Flag) {
		if fieldOf(f) != "" || portFlags[f.Name] != "" {
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
	if errs := logsapi.Validate(o.Logging, c.Gates(), nil); len(errs) > 0 {
		return fmt.Errorf("logging flags: %w", errs.ToAggregate())
	}
	if errs := logsapi.Validate(&c.Object.Logging, c.Gates(), fieldpath.NewPath("logging")); len(errs) > 0 {
		return o.inFile(errs.ToAggregate())
	}
	return nil
}

// explain puts wrong fields into the words of who said them, in one line.
func (o *Options) explain(wrong config.FieldErrors) error {
	var lines []string
	for _, e := range wrong {
		if o.ConfigFile == "" || e.Field == "hostnameOverride" && o.HostnameOverride != "" {
			e.Field = o.flagOf(e.Field)
		}
		lines = append(lines, e.Error())
	}
	return o.inFile(errors.New(strings.Join(lines, "; ")))
}

// inFile names the configuration file, if there is one, as where an error is.
func (o *Options) inFile(err error) error {
	if o.ConfigFile == "" {
		return err
	}
	return fmt.Errorf("--config %q: %w", o.ConfigFile, err)
}
