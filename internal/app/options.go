package app

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"

	"sluice/internal/config"
)

// Options are the flags as given.
type Options struct {
	Manifests  string
	Kubeconfig string
	Master     string

	HostnameOverride string
	BindAddress      string

	ProxyMode              string
	ClusterCIDR            string
	DetectLocalMode        string
	PodBridgeInterface     string
	PodInterfaceNamePrefix string
	MasqueradeAll          bool
	NodePortAddresses      []string

	Cleanup bool
	Logging *logsapi.LoggingConfiguration
}

// NewOptions returns the options of a command line without flags.
func NewOptions() *Options { return &Options{Logging: logsapi.NewLoggingConfiguration()} }

// flagGroup is a part of the help text.
type flagGroup struct {
	title string
	flags *pflag.FlagSet
}

// group starts a part of the help text. Flags keep their order in it.
func group(title string) flagGroup {
	fs := pflag.NewFlagSet(title, pflag.ContinueOnError)
	fs.SortFlags = false
	return flagGroup{title, fs}
}

// flags returns all flags, in the groups and the order that help shows.
func (o *Options) flags() []flagGroup {
	from := group("Where Services come from (one of them; none: the cluster this runs in)")
	from.flags.StringVar(&o.Manifests, "manifests", "",
		"read and watch the YAML and JSON files in `DIR`; no cluster is needed")
	from.flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "reach the API server as this `FILE` says")
	from.flags.StringVar(&o.Master, "master", "", "reach the API server at this `URL`, whatever --kubeconfig says")

	node := group("This node")
	node.flags.StringVar(&o.HostnameOverride, "hostname-override", "", "be the node of this `NAME`, not of the host's")
	node.flags.StringVar(&o.BindAddress, "bind-address", "0.0.0.0",
		"take this `IP` for the node's, not what its Node object says; all zeros change nothing")

	logging := group("Logging")
	logsapi.AddFlags(o.Logging, logging.flags)
	for _, gated := range []string{"log-text-split-stream", "log-text-info-buffer-size"} {
		logging.flags.Lookup(gated).Hidden = true
	}

	other := group("Other")
	other.flags.BoolVar(&o.Cleanup, "cleanup", false, "remove all rules Sluice may have left in the kernel, then exit")
	other.flags.Bool("version", false, "print the version, then exit")
	other.flags.BoolP("help", "h", false, "print this text, then exit")

	return []flagGroup{from, node, o.trafficFlags(), other, logging}
}

func (o *Options) trafficFlags() flagGroup {
	g := group("Traffic")
	g.flags.StringVar(&o.ProxyMode, "proxy-mode", "", "program the kernel by this `MODE`: nftables (the default)")
	g.flags.StringVar(&o.ClusterCIDR, "cluster-cidr", "",
		"`CIDRS` of the pods in the cluster: one, or two with a comma between, one of each family")
	g.flags.StringVar(&o.DetectLocalMode, "detect-local-mode", "",
		"`HOW` to recognise traffic of this node's pods: ClusterCIDR (the default), NodeCIDR, "+
			"BridgeInterface or InterfaceNamePrefix")
	g.flags.StringVar(&o.PodBridgeInterface, "pod-bridge-interface", "",
		"`NAME` of the bridge that pods are on, for BridgeInterface")
	g.flags.StringVar(&o.PodInterfaceNamePrefix, "pod-interface-name-prefix", "",
		"`PREFIX` of the pods' interface names, for InterfaceNamePrefix")
	g.flags.BoolVar(&o.MasqueradeAll, "masquerade-all", false,
		"hide the client's address in all traffic to ClusterIPs")
	g.flags.StringSliceVar(&o.NodePortAddresses, "nodeport-addresses", nil,
		"open NodePorts on the node's addresses within these `CIDRS`, or by the word primary "+
			"(the default) on those of its Node object")
	return g
}

// Configuration returns what the flags ask for, defaults filled in. The error
// names every wrong flag and its value.
func (o *Options) Configuration() (config.Configuration, error) {
	c := config.Default()
	c.Mode = cmp.Or(config.ProxyMode(o.ProxyMode), c.Mode)
	c.DetectLocalMode = cmp.Or(config.LocalMode(o.DetectLocalMode), c.DetectLocalMode)
	c.BridgeInterface = o.PodBridgeInterface
	c.InterfaceNamePrefix = o.PodInterfaceNamePrefix
	c.MasqueradeAll = o.MasqueradeAll

	var errs [4]error
	c.BindAddress, errs[0] = config.ParseBindAddress(o.BindAddress)
	c.ClusterCIDRs, errs[1] = config.ParseClusterCIDRs(o.ClusterCIDR)
	if len(o.NodePortAddresses) > 0 {
		c.NodePortAddresses, errs[2] = config.ParseNodePortAddresses(o.NodePortAddresses)
	}
	errs[3] = c.Validate()
	return c, flagErrors(errors.Join(errs[:]...))
}

// validateLogging checks the logging flags, which are applied later.
func (o *Options) validateLogging() error {
	if errs := logsapi.Validate(o.Logging, nil, nil); len(errs) > 0 {
		return fmt.Errorf("logging flags: %w", errs.ToAggregate())
	}
	return nil
}

// flagErrors puts the wrong fields of a configuration into the words of the
// command line, all in one line.
func flagErrors(err error) error {
	if err == nil {
		return nil
	}
	var lines []string
	for _, e := range leaves(err) {
		if f, ok := errors.AsType[*config.FieldError](e); ok {
			lines = append(lines, fmt.Sprintf("%s %q: %s", flagOf(f.Field), f.Value, f.Reason))
		} else {
			lines = append(lines, e.Error())
		}
	}
	return errors.New(strings.Join(lines, "; "))
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

// flagOf returns the flag that sets a field; the field itself if none does.
func flagOf(f config.Field) string {
	switch f {
	case config.FieldMode:
		return "--proxy-mode"
	case config.FieldBindAddress:
		return "--bind-address"
	case config.FieldClusterCIDR:
		return "--cluster-cidr"
	case config.FieldDetectLocalMode:
		return "--detect-local-mode"
	case config.FieldBridgeInterface:
		return "--pod-bridge-interface"
	case config.FieldInterfaceNamePrefix:
		return "--pod-interface-name-prefix"
	case config.FieldNodePortAddresses:
		return "--nodeport-addresses"
	default:
		return string(f)
	}
}
