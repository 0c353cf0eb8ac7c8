package app

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	fieldpath "k8s.io/apimachinery/pkg/util/validation/field"
	clientfeatures "k8s.io/client-go/features"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	metricsfeatures "k8s.io/component-base/metrics/features"
	"k8s.io/kube-proxy/config/v1alpha1"

	"sluice/internal/apiobject"
	"sluice/internal/config"
	"sluice/internal/dataplane"
	"sluice/internal/dataplane/mode"
	"sluice/internal/engine"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/statusapi"
	"sluice/internal/traffic"
)

// Options are the values of the flags.
type Options struct {
	// These apply with and without a configuration file.
	ConfigFile    string
	WriteConfigTo string
	Cleanup       bool
	InitOnly      bool
	Manifests     string
	Master        string
	LoadBalancing string
	ResetTCP      bool
	Allowed       AllowedOptions
	Relay         mode.Relay
	EBPF          mode.EBPF
	Untracked     []string // CIDRs, for mode ebpf
	Windows       windowsOptions
	StatusSocket  string
	Traffic       TrafficOptions
	StatusTCP     statusTCP

	// object has the values of flags that correspond to a field of a configuration
	// file; where no flag was given, the default that help shows.
	object  *v1alpha1.KubeProxyConfiguration
	fields  map[string]string // the fields of object, by the flags that set them
	groups  []*pflag.FlagSet
	flags   []*pflag.Flag  // of all groups, in the order of help
	doubts  *engine.Doubts // of this process
	version versionFlag
	log     io.Writer // nil: standard error
	offline bool      // nothing is served, so modes of other operating systems are allowed
}

const systemWindows = "windows"

// windowsOptions are properties of a process that only Windows has.
type windowsOptions struct {
	Service       bool // controlled by the service control manager
	PriorityClass string
}

// NewOptions returns the options of a command line without flags.
func NewOptions() *Options { return newOptions(runtime.GOOS) }

// newOptions returns the options of an operating system, a value of GOOS.
func newOptions(system string) *Options {
	o := &Options{
		Relay: mode.DefaultRelay(), EBPF: mode.DefaultEBPF(),
		Windows:      windowsOptions{PriorityClass: normalPriority},
		StatusSocket: statusapi.DefaultSocket,
		Traffic:      TrafficOptions{Level: countConnections, MaxSeries: traffic.DefaultMaxSeries},
		object:       config.FlagDefaults(), fields: map[string]string{}, doubts: new(engine.Doubts),
	}
	o.processFlags()
	o.trafficFlags()
	o.statusFlags()
	if system == systemWindows {
		o.windowsFlags()
	} else {
		o.relayFlags()
		o.ebpfFlags()
	}
	o.otherFlags()
	return o
}

// notice is a message that is logged once logging is configured.
type notice struct {
	message       string
	keysAndValues []any
}

// parsed is the validated content of flags and configuration file.
type parsed struct {
	input   config.Input
	config  config.Configuration
	notices []notice
}

func (p *parsed) note(message string, facts ...any) {
	p.notices = append(p.notices, notice{message, facts})
}

// read parses and validates flags and configuration file. If they do not name a
// mode, it is defaultMode. The error names every invalid flag or field and its value.
func (o *Options) read(defaultMode config.ProxyMode) (parsed, error) {
	var p parsed
	if o.ConfigFile == "" {
		o.readFlags(&p)
	} else if err := o.readFile(&p); err != nil {
		return parsed{}, o.inFile(err)
	}
	var err error
	p.config, err = p.input.Configuration(defaultMode)
	invalid, _ := errors.AsType[config.FieldErrors](err)
	modeOf := dataplane.Of
	if o.offline {
		modeOf = dataplane.Rendered
	}
	if _, err := modeOf(p.config.Mode); err != nil {
		mode := &config.FieldError{Field: "mode", Value: string(p.config.Mode), Reason: err.Error()}
		invalid = append(config.FieldErrors{mode}, invalid...)
	}
	if len(invalid) > 0 {
		return parsed{}, o.joinFieldErrors(invalid)
	}
	gates := p.config.Gates()
	if errs := logsapi.Validate(&o.object.Logging, gates, nil); len(errs) > 0 {
		return parsed{}, fmt.Errorf("logging flags: %w", errs.ToAggregate())
	}
	if errs := logsapi.Validate(&p.config.Object.Logging, gates, fieldpath.NewPath("logging")); len(errs) > 0 {
		return parsed{}, o.inFile(errs.ToAggregate())
	}
	for _, name := range slices.Sorted(maps.Keys(p.config.Object.FeatureGates)) {
		stage := gates.GetAll()[featuregate.Feature(name)].PreRelease
		if stage == featuregate.GA || stage == featuregate.Deprecated {
			p.note("Feature gate will be removed in a later version", "gate", name)
		}
	}
	return p, nil
}

func (o *Options) readFlags(p *parsed) {
	p.input = config.Input{Given: map[string]bool{}}
	in := &p.input.Object
	for _, f := range o.changedFlags() {
		if field := o.fields[f.Name]; field != "" {
			p.input.Given[field] = true
			config.Field(in, field).Set(config.Field(o.object, field))
		}
	}
	in.Logging = *o.object.Logging.DeepCopy()
	in.WindowsRunAsService = o.Windows.Service
	for _, f := range o.changedFlags() {
		if field := portFlags[f.Name]; field != "" {
			o.applyPortFlag(p, f, field)
		}
	}
}

// portFlags are the deprecated flags for ports, with the fields that they modify: a
// port is added to an address without one, and 0 disables the server.
var portFlags = map[string]string{"healthz-port": "healthzBindAddress", "metrics-port": "metricsBindAddress"}

// applyPortFlag applies a deprecated port flag to its field.
func (o *Options) applyPortFlag(p *parsed, f *pflag.Flag, field string) {
	address, instead := config.Field(&p.input.Object, field), o.flagOf(field)
	p.note("Flag is deprecated", "flag", "--"+f.Name, "instead", instead)
	ip, err := netip.ParseAddr(address.String())
	switch port := f.Value.String(); {
	case port == "0":
		address.SetString(config.None)
	case err == nil:
		address.SetString(net.JoinHostPort(ip.String(), port))
	default:
		// As in kube-proxy: clusters rely on the port of the address.
		p.note("Flag has no effect because the address has a port",
			"flag", "--"+f.Name, "address", instead+"="+config.Field(o.object, field).String())
	}
}

// readFile reads the configuration file, and applies the flags that override it.
func (o *Options) readFile(p *parsed) error {
	data, err := os.ReadFile(o.ConfigFile)
	if err != nil {
		return err
	}
	var warnings []string
	if p.input, warnings, err = config.Decode(data); err != nil {
		return err
	}
	for _, w := range warnings {
		p.note("Part of the configuration file is unknown or duplicate", "file", o.ConfigFile, "part", w)
	}
	in := &p.input.Object
	in.HostnameOverride = cmp.Or(o.object.HostnameOverride, in.HostnameOverride)
	in.WindowsRunAsService = in.WindowsRunAsService || o.Windows.Service
	return o.overlayLogging(&in.Logging)
}

// ignoredFlags returns a notice for each flag that the configuration file overrides.
func (o *Options) ignoredFlags() []notice {
	var p parsed
	for _, f := range o.changedFlags() {
		if field := o.fields[f.Name]; o.ConfigFile != "" && field+portFlags[f.Name] != "" && field != nodeField {
			p.note("Flag is ignored because there is a configuration file",
				"flag", "--"+f.Name, "value", f.Value.String(), "file", o.ConfigFile)
		}
	}
	return p.notices
}

// overlayLogging applies logging flags on top of the file's values. Lists of
// vmodule patterns are concatenated, those of the flag first.
func (o *Options) overlayLogging(file *logsapi.LoggingConfiguration) error {
	logsapi.SetRecommendedLoggingConfiguration(file)
	original := *file.DeepCopy()
	flags := pflag.NewFlagSet("logging", pflag.ContinueOnError)
	logsapi.AddFlags(file, flags)
	*file = original // AddFlags has overwritten it with defaults
	file.VModule = nil
	for _, f := range o.changedFlags() {
		if flags.Lookup(f.Name) == nil {
			continue
		}
		if err := flags.Set(f.Name, f.Value.String()); err != nil {
			return err
		}
	}
	file.VModule = append(file.VModule, original.VModule...)
	return nil
}

// joinFieldErrors returns all errors in one line, each with the name of the flag
// if the field was set by one.
func (o *Options) joinFieldErrors(errs config.FieldErrors) error {
	var texts []string
	for _, e := range errs {
		if o.ConfigFile == "" || e.Field == nodeField && o.object.HostnameOverride != "" {
			e.Field = o.flagOf(e.Field)
		}
		texts = append(texts, e.Error())
	}
	return o.inFile(errors.New(strings.Join(texts, "; ")))
}

// inFile prefixes an error with the configuration file, if there is one.
func (o *Options) inFile(err error) error {
	if o.ConfigFile == "" {
		return err
	}
	return fmt.Errorf("--config %q: %w", o.ConfigFile, err)
}

// clientGates makes client-go use our feature gates.
type clientGates struct {
	gates    featuregate.MutableFeatureGate
	fallback clientfeatures.Gates // for features that are newer than our table
}

func (g clientGates) Enabled(name clientfeatures.Feature) bool {
	if _, ok := g.gates.GetAll()[featuregate.Feature(name)]; !ok {
		return g.fallback.Enabled(name)
	}
	return g.gates.Enabled(featuregate.Feature(name))
}

// applyGates sets the feature gates of libraries, which are global: those of
// client-go, which must be set before the first client is created, and of the
// metrics library. It also exports all gates as a metric.
func applyGates(gates featuregate.MutableFeatureGate) {
	clientfeatures.ReplaceFeatureGates(clientGates{gates, clientfeatures.FeatureGates()})
	metricsfeatures.ApplyFeatureGates(gates)
	gates.AddMetrics()
}

// AllowedOptions restrict the addresses of Services to CIDRs. The word none allows
// no address, an empty list allows all.
type AllowedOptions struct{ ExternalIPs, LoadBalancerIPs []string }

// read parses the CIDRs.
func (o AllowedOptions) read() (allowed apiobject.Allowed, err error) {
	if allowed.ExternalIPs, err = parseCIDRs(apiobject.AllowedExternalIPs, o.ExternalIPs); err != nil {
		return allowed, err
	}
	allowed.LoadBalancerIPs, err = parseCIDRs(apiobject.AllowedLoadBalancerIPs, o.LoadBalancerIPs)
	return allowed, err
}

// parseCIDRs parses the items of a flag: CIDRs, or only the word none, which gives
// an empty list that is not nil.
func parseCIDRs(option string, items []string) ([]netip.Prefix, error) {
	if slices.Equal(items, []string{config.None}) {
		return []netip.Prefix{}, nil
	}
	var out []netip.Prefix
	for _, item := range items {
		p, ok := config.ParsePrefix(item)
		if !ok {
			return nil, fmt.Errorf("--%s: %q is neither a CIDR like 192.0.2.0/24 nor, alone, the word %s", option, item, config.None)
		}
		out = append(out, p)
	}
	return out, nil
}

// balancing returns how a mode shall choose endpoints.
func (o *Options) balancing(name config.ProxyMode) (resolve.Balancing, error) {
	mode, err := dataplane.Rendered(name)
	if err != nil {
		return resolve.Balancing{}, err
	}
	b := resolve.Balancing{Mode: string(name), Methods: mode.Balancing, Unweighted: !mode.Weights, Preserves: mode.PreservesDestination}
	if o.LoadBalancing == "" {
		return b, nil
	}
	if b.Cluster, err = proxy.ParseBalancing(o.LoadBalancing); err != nil {
		return b, fmt.Errorf("--load-balancing %w", err)
	}
	if slices.Contains(b.Methods, b.Cluster) {
		return b, nil
	}
	var all []string
	for _, m := range dataplane.Modes() {
		all = append(all, fmt.Sprintf("%s: %s", m.Name, proxy.BalancingWords(m.Balancing)))
	}
	return b, fmt.Errorf("--load-balancing %q: mode %s does not support it; supported methods: %s", o.LoadBalancing, name, strings.Join(all, "; "))
}
