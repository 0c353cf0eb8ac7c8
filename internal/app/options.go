package app

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"sluice/internal/config"
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

	// Object is what flags say that a configuration file could say too; it is
	// zero where no flag says anything.
	Object      v1alpha1.KubeProxyConfiguration
	HealthzPort int32
	MetricsPort int32

	groups  []flagGroup
	version versionFlag
}

// NewOptions returns the options of a command line without flags.
func NewOptions() *Options {
	o := &Options{Logging: logsapi.NewLoggingConfiguration()}
	o.groups = o.flags()
	// Adding a flag has written its default, which is only for the help text.
	// What nobody says stays zero, and the configuration knows what that means.
	o.Object = v1alpha1.KubeProxyConfiguration{}
	return o
}

// notice is a line for the log, said as soon as there is one.
type notice struct {
	message string
	facts   []any
}

// told is what flags and file say, read and checked.
type told struct {
	input   config.Input
	config  config.Configuration
	notices []notice
}

// read returns what flags and file ask for. A configuration that names no mode
// gets the given one. The error names every wrong flag or field and its value.
func (o *Options) read(unset config.ProxyMode) (told, error) {
	var t told
	var err error
	if o.ConfigFile == "" {
		t.input, t.notices = o.flagInput()
	} else if t.input, t.notices, err = o.fileInput(); err != nil {
		return told{}, err
	}
	if t.config, err = t.input.Configuration(unset); err != nil {
		return told{}, o.explain(err)
	}
	if err := o.validateLogging(&t.config); err != nil {
		return told{}, err
	}
	t.notices = append(t.notices, gateNotices(t.config.FeatureGates)...)
	return t, nil
}

// flagInput returns what the flags say.
func (o *Options) flagInput() (config.Input, []notice) {
	in := config.Input{Object: *o.Object.DeepCopy(), Flags: true, Given: map[config.Field]bool{}}
	o.visitGiven(func(f *pflag.Flag) {
		if field, ok := fieldOf(f); ok {
			in.Given[field] = true
		}
	})
	in.Object.HostnameOverride = o.HostnameOverride
	in.Object.Logging = *o.Logging.DeepCopy()
	return in, o.foldPorts(&in)
}

// foldPorts puts the deprecated port flags into the addresses. A port joins an
// address without one, and 0 switches the server off.
func (o *Options) foldPorts(in *config.Input) []notice {
	var notices []notice
	for _, p := range []struct {
		flag, instead string
		port          int32
		address       *string
	}{
		{"healthz-port", "healthz-bind-address", o.HealthzPort, &in.Object.HealthzBindAddress},
		{"metrics-port", "metrics-bind-address", o.MetricsPort, &in.Object.MetricsBindAddress},
	} {
		if !o.lookup(p.flag).Changed {
			continue
		}
		notices = append(notices, notice{"A flag is deprecated", []any{"flag", "--" + p.flag, "instead", "--" + p.instead}})
		ip, err := netip.ParseAddr(*p.address)
		switch {
		case p.port == 0:
			*p.address = config.None
		case err == nil:
			*p.address = net.JoinHostPort(ip.String(), strconv.Itoa(int(p.port)))
		default:
			// kube-proxy ignores the port too, and somebody relies on the port it has had.
			notices = append(notices, notice{
				"A flag changes nothing, the address has a port",
				[]any{"flag", "--" + p.flag, "address", "--" + p.instead + "=" + valueOf(o.lookup(p.instead))},
			})
		}
	}
	return notices
}

// explain puts wrong fields into the words of who said them, in one line.
func (o *Options) explain(err error) error {
	var lines []string
	for _, e := range leaves(err) {
		f, ok := errors.AsType[*config.FieldError](e)
		switch {
		case !ok:
			lines = append(lines, e.Error())
		case o.ConfigFile == "" || f.Field == config.FieldHostnameOverride && o.HostnameOverride != "":
			lines = append(lines, fmt.Sprintf("%s %q: %s", o.flagOf(f.Field), f.Value, f.Reason))
		default:
			lines = append(lines, f.Error())
		}
	}
	text := strings.Join(lines, "; ")
	if o.ConfigFile != "" {
		return fmt.Errorf("--config %q: %s", o.ConfigFile, text)
	}
	return errors.New(text)
}

// leaves takes joined errors apart.
func leaves(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, leaves(e)...)
	}
	return out
}

// contradictions refuses flags that cannot both be meant.
func (o *Options) contradictions() error {
	if o.Cleanup && o.InitOnly {
		return errors.New("--cleanup and --init-only: one removes what the other prepares for")
	}
	return nil
}
