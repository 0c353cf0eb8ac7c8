package app

import (
	"context"
	"errors"
	"slices"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"sluice/internal/apiobject"
	"sluice/internal/dataplane"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/source"
	"sluice/internal/source/manifest"
)

// offlineState is the result of resolving a folder of manifests, without a daemon, a
// kernel or a cluster.
type offlineState struct {
	objects  []metav1.Object    // all objects, including those that other proxies serve
	resolver *resolve.Resolver  // has the rows of the folder
	files    []manifest.Problem // problems of files
	problems []resolve.Problem  // problems of objects
}

// offlineFlags are the flags of the daemon that influence how a folder is resolved
// and rendered.
var offlineFlags = []string{
	"manifests", "config", "feature-gates", "hostname-override", "bind-address", "proxy-mode", "load-balancing", "reject-with-tcp-reset",
	"cluster-cidr", "detect-local-mode", "pod-bridge-interface", "pod-interface-name-prefix", "masquerade-all",
	"nodeport-addresses", apiobject.AllowedExternalIPs, apiobject.AllowedLoadBalancerIPs, "iptables-masquerade-bit", "iptables-localhost-nodeports", "ipvs-scheduler", untrackedCIDRs,
}

// flagSubset returns some of the daemon's flags, for a subcommand.
func (o *Options) flagSubset(names ...string) *pflag.FlagSet {
	fs := pflag.NewFlagSet("daemon", pflag.ContinueOnError)
	fs.SortFlags = false
	for _, f := range o.flags {
		if slices.Contains(names, f.Name) {
			fs.AddFlag(f)
		}
	}
	return fs
}

// offlinePlan returns the plan for a folder, by flags and configuration file.
func (o *Options) offlinePlan() (plan, error) {
	if o.Manifests == "" {
		return plan{}, errors.New("no source of Services: give --manifests DIR")
	}
	o.offline = true
	in, err := o.read(dataplane.Default())
	if err != nil {
		return plan{}, err
	}
	return o.plan(in.config)
}

// offline resolves the plan's folder once, without logging.
func (p plan) offline(ctx context.Context, families []proxy.Family) (offlineState, error) {
	rules, err := p.resolveSettings(klog.NewContext(ctx, klog.Logger{}), families)
	if err != nil {
		return offlineState{}, err
	}
	s := offlineState{resolver: resolve.New(rules)}
	if s.objects, s.files, err = manifest.Load(p.source.manifests); err != nil {
		return offlineState{}, err
	}
	for _, o := range s.objects {
		switch o := o.(type) {
		case *v1.Service:
			s.resolver.Services.Update(nil, o)
		case *discoveryv1.EndpointSlice:
			if source.WantsEndpointSlice(o) {
				s.resolver.Endpoints.Update(o, false)
			}
		case *v1.Node:
			s.resolver.UpdateNode(o)
		case *networkingv1.ServiceCIDR:
			s.resolver.UpdateServiceCIDR(nil, o)
		}
	}
	s.resolver.Update()
	s.problems, _ = s.resolver.TakeProblems()
	return s, nil
}
