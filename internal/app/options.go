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
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/statusapi"
	"sluice/internal/traffic"
)

// Options are the flags as given.
type Options struct {
	// These count with and without a configuration file.
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

	// object holds what flags say that a configuration file could say too, and
	// the default that help shows where no flag does.
	object  *v1alpha1.KubeProxyConfiguration
	fields  map[string]string // of the object, by the flags that set them
	groups  []*pflag.FlagSet
	flags   []*pflag.Flag // of all groups, in the order of help
	version versionFlag
	log     io.Writer // where the log goes; nil: standard error
	offline bool      // nothing is served, so modes of other systems will do
}

const systemWindows = "windows"

// windowsOptions are what a process can be on Windows only.
type windowsOptions struct {
	Service       bool // controlled by the service control manager
	PriorityClass string
}

// NewOptions returns the options of a command line without flags.
func NewOptions() *Options { return newOptions(runtime.GOOS) }

// newOptions returns those that a system has, by what Go calls it.
func newOptions(system string) *Options {
	o := &Options{
		Relay: mode.DefaultRelay(), EBPF: mode.DefaultEBPF(),
		Windows:      windowsOptions{PriorityClass: normalPriority},
		StatusSocket: statusapi.DefaultSocket,
		Traffic:      TrafficOptions{Level: countConnections, MaxSeries: traffic.DefaultMaxSeries},
		object:       config.FlagDefaults(), fields: map[string]string{},
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

func (p *parsed) note(message string, facts ...any) {
	p.notices = append(p.notices, notice{message, facts})
}

// read returns what flags and file ask for. A configuration that names no mode
// gets the given one. The error names every wrong flag or field and its value.
func (o *Options) read(unset config.ProxyMode) (parsed, error) {
	var p parsed
	if o.ConfigFile == "" {
		o.readFlags(&p)
	} else if err := o.readFile(&p); err != nil {
		return parsed{}, o.inFile(err)
	}
	var err error
	p.config, err = p.input.Configuration(unset)
	wrong, _ := errors.AsType[config.FieldErrors](err)
	of := dataplane.Of
	if o.offline {
		of = dataplane.Rendered
	}
	if _, err := of(p.config.Mode); err != nil {
		mode := &config.FieldError{Field: "mode", Value: string(p.config.Mode), Reason: err.Error()}
		wrong = append(config.FieldErrors{mode}, wrong...)
	}
	if len(wrong) > 0 {
		return parsed{}, o.explain(wrong)
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
			p.note("A feature gate will be removed in a later version", "gate", name)
		}
	}
	return p, nil
}

func (o *Options) readFlags(p *parsed) {
	p.input = config.Input{Given: map[string]bool{}}
	in := &p.input.Object
	for _, f := range o.given() {
		if field := o.fields[f.Name]; field != "" {
			p.input.Given[field] = true
			config.At(in, field).Set(config.At(o.object, field))
		}
	}
	in.Logging = *o.object.Logging.DeepCopy()
	in.WindowsRunAsService = o.Windows.Service
	for _, f := range o.given() {
		if field := portFlags[f.Name]; field != "" {
			o.foldPort(p, f, field)
		}
	}
}

// portFlags are deprecated: a port joins the address of a field if that has none,
// and 0 switches the server off.
var portFlags = map[string]string{"healthz-port": "healthzBindAddress", "metrics-port": "metricsBindAddress"}

// foldPort puts a deprecated port flag into the address.
func (o *Options) foldPort(p *parsed, f *pflag.Flag, field string) {
	address, instead := config.At(&p.input.Object, field), o.flagOf(field)
	p.note("A flag is deprecated", "flag", "--"+f.Name, "instead", instead)
	ip, err := netip.ParseAddr(address.String())
	switch port := f.Value.String(); {
	case port == "0":
		address.SetString(config.None)
	case err == nil:
		address.SetString(net.JoinHostPort(ip.String(), port))
	default:
		// kube-proxy ignores the port too, and clusters rely on the port that the address has.
		p.note("A flag changes nothing, the address has a port",
			"flag", "--"+f.Name, "address", instead+"="+config.At(o.object, field).String())
	}
}

// readFile reads what the configuration file says, with the flags that win over
// it.
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
		p.note("A part of the configuration file is unknown or there twice", "file", o.ConfigFile, "part", w)
	}
	in := &p.input.Object
	in.HostnameOverride = cmp.Or(o.object.HostnameOverride, in.HostnameOverride)
	in.WindowsRunAsService = in.WindowsRunAsService || o.Windows.Service
	return o.overlayLogging(&in.Logging)
}

// overruled names the flags of the command line that the file makes void.
func (o *Options) overruled() []notice {
	var p parsed
	for _, f := range o.given() {
		if field := o.fields[f.Name]; o.ConfigFile != "" && field+portFlags[f.Name] != "" && field != nodeField {
			p.note("A flag is ignored, the configuration file decides",
				"flag", "--"+f.Name, "value", f.Value.String(), "file", o.ConfigFile)
		}
	}
	return p.notices
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
	for _, f := range o.given() {
		if over.Lookup(f.Name) == nil {
			continue
		}
		if err := over.Set(f.Name, f.Value.String()); err != nil {
			return err
		}
	}
	file.VModule = append(file.VModule, said.VModule...)
	return nil
}

// explain puts wrong fields into the words of who said them, in one line.
func (o *Options) explain(wrong config.FieldErrors) error {
	var lines []string
	for _, e := range wrong {
		if o.ConfigFile == "" || e.Field == nodeField && o.object.HostnameOverride != "" {
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

// clientGates lets client-go ask our gates for its features.
type clientGates struct {
	ours   featuregate.MutableFeatureGate
	theirs clientfeatures.Gates // for what is newer than our table
}

func (g clientGates) Enabled(name clientfeatures.Feature) bool {
	if _, ok := g.ours.GetAll()[featuregate.Feature(name)]; !ok {
		return g.theirs.Enabled(name)
	}
	return g.ours.Enabled(featuregate.Feature(name))
}

// openGates puts the gates in force that belong to the whole process: those of
// client-go, before the first client, and how metrics are made. It also shows
// all of them as a metric.
func openGates(gates featuregate.MutableFeatureGate) {
	clientfeatures.ReplaceFeatureGates(clientGates{gates, clientfeatures.FeatureGates()})
	metricsfeatures.ApplyFeatureGates(gates)
	gates.AddMetrics()
}

// AllowedOptions are the ranges that addresses of Services must be from, as given:
// CIDRs, or the word none; empty: every address.
type AllowedOptions struct{ ExternalIPs, LoadBalancerIPs []string }

// read returns the ranges that Services may have addresses from.
func (o AllowedOptions) read() (allowed apiobject.Allowed, err error) {
	if allowed.ExternalIPs, err = ranges(apiobject.AllowedExternalIPs, o.ExternalIPs); err != nil {
		return allowed, err
	}
	allowed.LoadBalancerIPs, err = ranges(apiobject.AllowedLoadBalancerIPs, o.LoadBalancerIPs)
	return allowed, err
}

// ranges reads what an option has: CIDRs, or the word none.
func ranges(option string, items []string) ([]netip.Prefix, error) {
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

// balancing returns how a mode is to choose endpoints.
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
	return b, fmt.Errorf("--load-balancing %q: mode %s cannot do that; %s", o.LoadBalancing, name, strings.Join(all, "; "))
}
