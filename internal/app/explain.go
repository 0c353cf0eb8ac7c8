package app

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"sluice/internal/cli"
	"sluice/internal/explain"
	"sluice/internal/proxy"
	"sluice/internal/source"
	"sluice/internal/statusapi"
)

const explainHelp = `Explain what happens to the first packet of a connection, and why: which Service
it belongs to, where it may go, which endpoints are not used, and whether the
kernel agrees.

The answer comes from the daemon of this node, or with --manifests from a folder,
read as the daemon would read it, on any system and without root. Reasons are
listed in docs/explain.md, with what to do about each. The exit code is 0 if all
is well, 1 if there is a finding, 2 if the question cannot be answered.`

const explainExamples = `  sluice explain default/web
  sluice explain 10.96.0.10:80 --from 10.244.1.5
  sluice explain kube-system/kube-dns:dns --proto udp
  sluice explain 192.0.2.10:30080 --from 203.0.113.7 --in eth0 -o json
  sluice explain default/web --manifests ./examples --hostname-override node-1`

// traceTime is how long --trace without a value waits for a packet.
const traceTime = 10 * time.Second

type explainOptions struct {
	daemon *Options // the daemon's flags, for a folder
	to     string
	cli.ExplainOptions
	socket        string
	nodeAddresses []string
	try           bool          // make a real connection
	trace         time.Duration // how long to wait for a packet to trace; 0: do not trace
	port          uint16        // of the client, to find its connection; 0: none
}

func newExplainCommand() *cobra.Command {
	o := &explainOptions{daemon: NewOptions()}
	cmd := cli.Answering(&cobra.Command{
		Use:     "explain ADDR:PORT | NAMESPACE/SERVICE[:PORT]",
		Short:   "Explain what happens to a packet, and why",
		Long:    explainHelp,
		Example: explainExamples,
		Args:    oneTarget,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.to = args[0]
			return o.run(cmd)
		},
	})
	f := cmd.Flags()
	f.SortFlags = false // the daemon's flags come last
	o.AddFlags(f)
	socketFlag(f, &o.socket)
	f.BoolVar(&o.try, "connect", false, "also make a real TCP connection from this node")
	f.DurationVar(&o.trace, "trace", 0, "also trace a real packet through all rules of nf_tables: one sent by this node, or the client's next one within this `TIME`")
	f.Lookup("trace").NoOptDefVal = traceTime.String()
	f.StringSliceVar(&o.nodeAddresses, "node-addresses", nil, "with --manifests: `IPS` of the node besides its Node object's")
	f.AddFlagSet(o.daemon.flagSubset(offlineFlags...))
	completeFlag(cmd, "output", cli.ExplainFormats)
	completeMode(cmd)
	cmd.ValidArgsFunction = completeServices(&o.socket)
	return cmd
}

func oneTarget(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("got %d targets: give one, ADDR:PORT or NAMESPACE/SERVICE[:PORT]", len(args))
	}
	return nil
}

func (o *explainOptions) run(cmd *cobra.Command) error {
	if err := o.Check(); err != nil {
		return err
	}
	e, err := o.explain(cmd)
	if err != nil {
		return err
	}
	if err := cli.Explain(cmd.OutOrStdout(), o.Output, e, time.Now()); err != nil {
		return err
	}
	if !e.Fine() {
		return &cli.ExitError{Code: cli.ExitFinding}
	}
	return nil
}

func (o *explainOptions) explain(cmd *cobra.Command) (*statusapi.Explanation, error) {
	if cmd.Flags().Changed("manifests") {
		if o.try || o.trace > 0 {
			return nil, errors.New("--connect and --trace need the rules of a running daemon: leave out --manifests")
		}
		return o.offline(cmd.Context())
	}
	for _, name := range append([]string{"node-addresses"}, offlineFlags...) {
		if cmd.Flags().Changed(name) {
			return nil, fmt.Errorf("--%s needs --manifests DIR: a running daemon uses its own flags", name)
		}
	}
	e, err := o.ask(cmd.Context())
	if err == nil && o.try {
		e, err = o.connect(cmd.Context(), e)
	}
	if err == nil && o.trace > 0 {
		e.Trace, err = o.runTrace(cmd.Context(), cmd.ErrOrStderr(), e)
	}
	return e, err
}

func (o *explainOptions) ask(ctx context.Context) (*statusapi.Explanation, error) {
	e := &statusapi.Explanation{}
	query := o.Query(o.to)
	if o.port != 0 {
		query.Set("port", strconv.Itoa(int(o.port)))
	}
	return e, statusapi.AtSocket(o.socket).Get(ctx, statusapi.ExplainPath, query, e)
}

// offline explains from a folder of manifests.
func (o *explainOptions) offline(ctx context.Context) (*statusapi.Explanation, error) {
	ctx = klog.NewContext(ctx, logr.Discard()) // the answer contains what matters
	var local []netip.Addr
	for _, text := range o.nodeAddresses {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("--node-addresses: %q is not an IP address", text)
		}
		local = append(local, a.Unmap())
	}
	p, err := o.daemon.offlinePlan()
	if err != nil {
		return nil, err
	}
	s, err := p.offline(ctx, proxy.Families[:])
	if err != nil {
		return nil, err
	}
	local = append(local, s.resolver.State().Node.IPs...)
	w := explain.World{
		Resolver: s.resolver, Mode: string(p.config.Mode), Unserved: unserved(s.objects, proxy.Families[:]),
		Local: func(a netip.Addr) bool { return slices.Contains(local, a) },
	}
	a, err := w.Explain(explain.Question{To: o.to, From: o.From, Protocol: o.Protocol, In: o.In})
	if err != nil {
		return nil, err
	}
	if !hasNode(s.objects, p.node) {
		a.Notes = append(a.Notes, fmt.Sprintf("the folder has no Node %s, so its zone and addresses are not known: "+
			"give the node's name with --hostname-override", p.node))
	}
	for _, f := range s.files {
		a.Notes = append(a.Notes, f.String())
	}
	return a.Explanation, nil
}

// unserved returns the Services that this proxy does not serve at all, or not on a
// node with these families.
func unserved(objects []metav1.Object, families []proxy.Family) []explain.Unserved {
	out := []explain.Unserved{}
	for _, o := range objects {
		s, ok := o.(*v1.Service)
		if !ok {
			continue
		}
		u := explain.Unserved{Name: source.NameOf(s)}
		for _, text := range append([]string{s.Spec.ClusterIP}, s.Spec.ClusterIPs...) {
			if a, err := netip.ParseAddr(text); err == nil {
				u.Addresses = append(u.Addresses, a)
			}
		}
		if u.Why, u.Detail = whyUnserved(s, u.Addresses, families); u.Why != "" {
			out = append(out, u)
		}
	}
	return out
}

// whyUnserved returns why a Service with these addresses is not served. The reason
// is empty if it is served.
func whyUnserved(s *v1.Service, addresses []netip.Addr, families []proxy.Family) (statusapi.Reason, string) {
	served := func(a netip.Addr) bool { return slices.Contains(families, proxy.FamilyOf(a)) }
	switch other, labelled := s.Labels[source.LabelServiceProxyName]; {
	case labelled:
		return statusapi.OtherProxy, fmt.Sprintf("label %s assigns it to proxy %q", source.LabelServiceProxyName, other)
	case s.Spec.Type == v1.ServiceTypeExternalName:
		return statusapi.ExternalName, "it is a DNS name, " + s.Spec.ExternalName
	case !source.WantsService(s):
		return statusapi.Headless, "it is headless, so clients connect to its pods"
	case len(addresses) > 0 && len(s.Spec.Ports) == 0:
		return statusapi.NoPorts, "it has no ports"
	case len(addresses) > 0 && !slices.ContainsFunc(addresses, served):
		return statusapi.FamilyNotServed, fmt.Sprintf("its address %v is %v, which this node does not serve", addresses[0], proxy.FamilyOf(addresses[0]))
	}
	return "", ""
}
