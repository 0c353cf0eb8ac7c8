package app

import (
	"strings"
	"time"

	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // makes --logging-format=json known

	"sluice/internal/config"
)

// flagGroup is a part of the help text.
type flagGroup struct {
	title string
	*pflag.FlagSet
}

// group starts a part of the help text. Flags keep their order in it.
func group(title string) flagGroup {
	fs := pflag.NewFlagSet(title, pflag.ContinueOnError)
	fs.SortFlags = false
	return flagGroup{title, fs}
}

// fieldKey is the annotation of a flag that a configuration file overrules. Its
// value is the field that the flag sets; "" if there is no such field.
const fieldKey = "field"

// sets says which fields of a file the flags of this group set: pairs of a
// flag's name and a field.
func (g flagGroup) sets(fields map[string]config.Field) flagGroup {
	for name, field := range fields {
		g.Lookup(name).Annotations = map[string][]string{fieldKey: {string(field)}}
	}
	return g
}

// hide keeps flags out of the help text.
func (g flagGroup) hide(names ...string) {
	for _, name := range names {
		g.Lookup(name).Hidden = true
	}
}

// fieldOf returns the field that a flag sets, and whether a configuration file
// overrules the flag.
func fieldOf(f *pflag.Flag) (field config.Field, overruled bool) {
	values, ok := f.Annotations[fieldKey]
	if !ok {
		return "", false
	}
	return config.Field(values[0]), true
}

// flagOf returns the flag that sets a field; the field itself if none does.
func (o *Options) flagOf(field config.Field) string {
	if field == config.FieldHostnameOverride {
		return "--hostname-override"
	}
	name := string(field)
	for _, g := range o.groups {
		g.VisitAll(func(f *pflag.Flag) {
			if of, ok := fieldOf(f); ok && of == field {
				name = "--" + f.Name
			}
		})
	}
	return name
}

// visitGiven calls do for each flag of the command line, in the order of help.
func (o *Options) visitGiven(do func(*pflag.Flag)) {
	for _, g := range o.groups {
		g.VisitAll(func(f *pflag.Flag) {
			if f.Changed {
				do(f)
			}
		})
	}
}

// values calls do with each flag and the value it has or would have.
func (o *Options) values(do func(name, value string)) {
	for _, g := range o.groups {
		g.VisitAll(func(f *pflag.Flag) { do(f.Name, valueOf(f)) })
	}
}

// all returns every flag and its value.
func (o *Options) all() map[string]string {
	out := map[string]string{}
	o.values(func(name, value string) { out[name] = value })
	return out
}

// valueOf returns a flag's value. Variables hold only what was given.
func valueOf(f *pflag.Flag) string {
	if !f.Changed {
		return f.DefValue
	}
	return f.Value.String()
}

// lookup returns a flag that there is.
func (o *Options) lookup(name string) *pflag.Flag {
	for _, g := range o.groups {
		if f := g.Lookup(name); f != nil {
			return f
		}
	}
	panic("no flag --" + name)
}

// flags returns all flags, in the groups and the order that help shows.
func (o *Options) flags() []flagGroup {
	return []flagGroup{
		o.originFlags(), o.fileFlags(), o.nodeFlags(), o.trafficFlags(), o.serverFlags(), o.conntrackFlags(),
		o.iptablesFlags(), o.ipvsFlags(), o.otherFlags(), o.loggingFlags(),
	}
}

func (o *Options) originFlags() flagGroup {
	g := group("Where Services come from (one of them; none: the cluster this runs in)")
	c := &o.Object.ClientConnection
	g.StringVar(&o.Manifests, "manifests", "", "read and watch the YAML and JSON files in `DIR`; no cluster is needed")
	g.StringVar(&c.Kubeconfig, "kubeconfig", "", "reach the API server as this `FILE` says")
	g.StringVar(&o.Master, "master", "", "reach the API server at this `URL`, whatever the kubeconfig says")
	g.StringVar(&c.ContentType, "kube-api-content-type", "application/vnd.kubernetes.protobuf",
		"speak this `TYPE` of content with the API server")
	g.Float32Var(&c.QPS, "kube-api-qps", 5, "send at most this `NUMBER` of requests a second")
	g.Int32Var(&c.Burst, "kube-api-burst", 10, "send at most this `NUMBER` of requests at once")
	g.DurationVar(&o.Object.ConfigSyncPeriod.Duration, "config-sync-period", 15*time.Minute,
		"accepted and without effect, for objects are not cached; kube-proxy takes a `TIME`")
	return g.sets(map[string]config.Field{
		"kubeconfig":            config.FieldKubeconfig,
		"kube-api-content-type": config.FieldContentType,
		"kube-api-qps":          config.FieldQPS,
		"kube-api-burst":        config.FieldBurst,
		"config-sync-period":    config.FieldConfigSyncPeriod,
	})
}

func (o *Options) fileFlags() flagGroup {
	g := group("Configuration")
	g.StringVar(&o.ConfigFile, "config", "",
		"read the KubeProxyConfiguration in this `FILE` and follow its changes; it overrules all flags but those of "+
			"logging, --manifests, --master and --hostname-override")
	g.StringVar(&o.WriteConfigTo, "write-config-to", "", "write the configuration in force to this `FILE`, then exit")
	g.Var(gatesValue{&o.Object.FeatureGates}, "feature-gates",
		"`GATES` of Kubernetes, like Name=true,Other=false; one that nobody knows is accepted with a warning")
	return g.sets(map[string]config.Field{"feature-gates": config.FieldFeatureGates})
}

func (o *Options) nodeFlags() flagGroup {
	g := group("This node")
	g.StringVar(&o.HostnameOverride, "hostname-override", "", "be the node of this `NAME`, not of the host's")
	g.StringVar(&o.Object.BindAddress, "bind-address", "0.0.0.0",
		"take this `IP` for the node's, not what its Node object says; all zeros change nothing")
	g.Var(optionalInt(&o.Object.OOMScoreAdj, -999), "oom-score-adj",
		"`SCORE` from -1000 to 1000 that keeps the kernel from ending this process when memory is short")
	return g.sets(map[string]config.Field{
		"bind-address":  config.FieldBindAddress,
		"oom-score-adj": config.FieldOOMScoreAdj,
	})
}

func (o *Options) trafficFlags() flagGroup {
	g := group("Traffic")
	c := &o.Object
	g.StringVar((*string)(&c.Mode), "proxy-mode", "",
		"program the kernel by this `MODE`: "+modeNames()+"; without it, the best that the kernel can do, or what the host needs")
	g.StringVar(&c.ClusterCIDR, "cluster-cidr", "",
		"`CIDRS` of the pods in the cluster: one, or two with a comma between, one of each family")
	g.StringVar((*string)(&c.DetectLocalMode), "detect-local-mode", "",
		"`HOW` to recognise traffic of this node's pods: ClusterCIDR (the default), NodeCIDR, "+
			"BridgeInterface or InterfaceNamePrefix")
	g.StringVar(&c.DetectLocal.BridgeInterface, "pod-bridge-interface", "",
		"`NAME` of the bridge that pods are on, for BridgeInterface")
	g.StringVar(&c.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "",
		"`PREFIX` of the pods' interface names, for InterfaceNamePrefix")
	g.BoolVar(&c.IPTables.MasqueradeAll, "masquerade-all", false, "hide the client's address in all traffic to ClusterIPs")
	g.StringSliceVar(&c.NodePortAddresses, "nodeport-addresses", nil,
		"open NodePorts on the node's addresses within these `CIDRS`, by the word primary (the default if mode "+
			"nftables is named) on those of its Node object, by localhost on loopback addresses (IPv4), by all on "+
			"every one; they can be combined")
	return g.sets(map[string]config.Field{
		"proxy-mode":                config.FieldMode,
		"cluster-cidr":              config.FieldClusterCIDR,
		"detect-local-mode":         config.FieldDetectLocalMode,
		"pod-bridge-interface":      config.FieldBridgeInterface,
		"pod-interface-name-prefix": config.FieldInterfaceNamePrefix,
		"masquerade-all":            config.FieldIPTablesMasqueradeAll,
		"nodeport-addresses":        config.FieldNodePortAddresses,
	})
}

func (o *Options) serverFlags() flagGroup {
	g := group("Health and metrics")
	c := &o.Object
	g.StringVar(&c.HealthzBindAddress, "healthz-bind-address", "0.0.0.0:10256",
		"answer health checks at this `IP` or IP:PORT; empty or none: do not")
	g.StringVar(&c.MetricsBindAddress, "metrics-bind-address", "127.0.0.1:10249",
		"serve metrics at this `IP` or IP:PORT; empty or none: do not")
	g.BoolVar(&c.BindAddressHardFail, "bind-address-hard-fail", false, "exit when one of them cannot be had, do not try again")
	g.BoolVar(&c.EnableProfiling, "profiling", false, "serve /debug/pprof and /debug/flags beside the metrics")
	g.StringVar(&c.ShowHiddenMetricsForVersion, "show-hidden-metrics-for-version", "",
		"serve the metrics that were hidden after this `VERSION` too; only the previous minor version is possible")
	g.Int32Var(&o.HealthzPort, "healthz-port", config.HealthzPort, "deprecated: the port for --healthz-bind-address")
	g.Int32Var(&o.MetricsPort, "metrics-port", config.MetricsPort, "deprecated: the port for --metrics-bind-address")
	g.hide("healthz-port", "metrics-port")
	return g.sets(map[string]config.Field{
		"healthz-bind-address":            config.FieldHealthzBindAddress,
		"metrics-bind-address":            config.FieldMetricsBindAddress,
		"bind-address-hard-fail":          config.FieldBindAddressHardFail,
		"profiling":                       config.FieldEnableProfiling,
		"show-hidden-metrics-for-version": config.FieldShowHiddenMetrics,
		"healthz-port":                    "",
		"metrics-port":                    "",
	})
}

func (o *Options) otherFlags() flagGroup {
	g := group("Other")
	g.BoolVar(&o.Cleanup, "cleanup", false, "remove all rules that a service proxy may have left in the kernel, then exit")
	g.BoolVar(&o.InitOnly, "init-only", false, "do what needs the most privileges, without an API server, then exit")
	g.VarPF(&o.version, "version", "", "print the version, or with raw all that is known of the build, then exit; "+
		"with one like v1.2.3-more go by that").NoOptDefVal = "true"
	g.BoolP("help", "h", false, "print this text, then exit")
	// Command lines have these for a library that kube-proxy once had.
	g.String("boot-id-file", "/proc/sys/kernel/random/boot_id", "accepted and not used")
	g.String("machine-id-file", "/etc/machine-id,/var/lib/dbus/machine-id", "accepted and not used")
	g.hide("boot-id-file", "machine-id-file")
	return g
}

func (o *Options) loggingFlags() flagGroup {
	g := group("Logging")
	logsapi.AddFlags(o.Logging, g.FlagSet)
	g.hide("log-text-split-stream", "log-text-info-buffer-size", "log-json-split-stream", "log-json-info-buffer-size")
	return g
}

// modeNames names the modes that are built.
func modeNames() string {
	var names []string
	for _, m := range config.Modes() {
		names = append(names, string(m))
	}
	return strings.Join(names, " or ")
}
