package conformance

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
)

// Daemon is a daemon on a node together with its source of objects. It is tested instead of a
// dataplane.
type Daemon interface {
	// Write replaces all objects with those of a world, and returns the world as the source has it:
	// an API server may set defaults or reject objects. It does not wait for the daemon.
	Write(ctx context.Context, w *World) (*World, error)

	// Settle starts a daemon with the world's settings if none is running, and returns when
	// everything written is in force. The kernel's state must then equal what a new daemon would
	// write.
	Settle(ctx context.Context, w *World) error

	// Kill kills the daemon with SIGKILL.
	Kill() error

	// Faults returns the faults that can be injected into the source, the simplest first.
	Faults() []Fault

	Close() error
}

// RunChurn runs random histories of a daemon of up to so many steps: objects change, the daemon is
// killed, the source has faults. After each step the kernel's state must equal what a new daemon
// would write, and random packets must have the oracle's results. A failing history is shrunk to
// its simplest form.
func RunChurn(t *testing.T, d Dataplane, steps, packets int) Churn {
	b := newTestbed(t, d)
	histories := rapid.Custom(func(r *rapid.T) *Group {
		m := &generator{rapidChooser{r}}
		g, err := m.group(d.Mode, "history", 1+m.IntN(steps), packets)
		if err != nil {
			t.Fatal(err)
		}
		m.addFaults(g, b.daemon.Faults())
		return g
	})
	out := &b.churn
	logged := time.Now()
	rapid.Check(t, func(r *rapid.T) {
		g := histories.Draw(r, "history")
		out.Histories, out.Steps = out.Histories+1, out.Steps+len(g.Phases)
		if failures := b.runGroup(t.Context(), g); len(failures) > 0 {
			r.Fatal(g.describeFailure(d.Mode, failures))
		}
		if out.Flows = int(b.counters.flows.Load()); time.Since(logged) > time.Minute {
			logged = time.Now()
			t.Log(out)
		}
	})
	t.Log(out)
	return *out
}

func newTestbed(t *testing.T, d Dataplane) *testbed {
	lab.Require(t)
	b, err := newScheduler(t, d).newTestbed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// Churn is the statistics of random histories.
type Churn struct {
	Histories, Steps, Flows int
	ReturningClients        int                        // that connected again in a later step
	Settled                 map[string][]time.Duration // by fault: how long until everything was in force again
}

// killFault is the name of the fault that the daemon is killed.
const killFault = "the daemon is killed"

func (c *Churn) String() string {
	text := fmt.Sprintf("%d histories, %d steps, %d flows, %d returning clients", c.Histories, c.Steps, c.Flows, c.ReturningClients)
	for _, name := range slices.Sorted(maps.Keys(c.Settled)) {
		text += fmt.Sprintf("; %s: %d, at most %v", name, len(c.Settled[name]), slices.Max(c.Settled[name]).Round(time.Millisecond))
	}
	return text
}

// recordSettled records how long the daemon took after the faults of a phase.
func (c *Churn) recordSettled(p Phase, took time.Duration) {
	if c.Settled == nil {
		c.Settled = map[string][]time.Duration{}
	}
	if p.Kill {
		c.Settled[killFault] = append(c.Settled[killFault], took)
	}
	if p.Fault != nil {
		c.Settled[p.Fault.Name] = append(c.Settled[p.Fault.Name], took)
	}
}

// GoString keeps rapid from printing the whole history; describeFailure does.
func (g *Group) GoString() string { return g.ID }

// describeFailure describes the first failure and the states that led to it.
func (g *Group) describeFailure(mode string, failures []failure) string {
	var text strings.Builder
	first := failures[0]
	for i, w := range g.worlds() {
		p := g.Phases[i]
		fmt.Fprintf(&text, "\nphase %s, detour %v, killed %v, trouble %s, %+v:\n%v",
			p.Name, p.Detour, p.Kill, p.Fault, w.Config, w.newResolver(mode).State())
		if strings.HasPrefix(first.id, p.Name+"-") {
			break
		}
	}
	for _, c := range g.Cases {
		if c.ID == first.id {
			first.id += fmt.Sprintf(" (%v from %s %v to %v)", c.protocol(), c.From, c.Src, c.to())
		}
	}
	return fmt.Sprintf("%s: %v; after\n%s", first.id, first.err, text.String())
}

// rapidChooser makes choices that rapid can shrink.
type rapidChooser struct{ *rapid.T }

func (d rapidChooser) IntN(n int) int { return rapid.IntRange(0, n-1).Draw(d.T, "choice") }

// writePhase writes the objects of a phase, with its detour, kill and fault, and waits until they
// are in force.
func (r *run) writePhase(ctx context.Context, p Phase, w *World) error {
	way := []*World{r.world}
	if p.Detour {
		wrong, err := r.daemon.Write(ctx, w.wrong(r.rng))
		if err != nil {
			return err
		}
		way = append(way, wrong)
	}
	if p.Kill {
		if err := r.daemon.Kill(); err != nil {
			return err
		}
		if r.d.ForgetsClients {
			clear(r.bindings)
		}
	}
	err := p.Fault.during(ctx, func() (err error) {
		r.world, err = r.daemon.Write(ctx, w)
		return err
	})
	if err != nil {
		return err
	}
	r.resolver = r.world.newResolver(r.d.Mode)
	since := time.Now()
	err = r.daemon.Settle(ctx, r.world)
	r.churn.recordSettled(p, time.Since(since))
	r.dropBindings(append(way, r.world)...)
	return err
}

// wrong returns a world in which about half of the objects are wrong.
func (w *World) wrong(rng *rand.Rand) *World {
	out := *w
	out.Services, out.Slices = slices.Clone(w.Services), slices.Clone(w.Slices)
	for i, s := range out.Services {
		if rng.IntN(2) == 0 {
			out.Services[i] = wrongService(s, rng)
		}
	}
	for i, s := range out.Slices {
		if rng.IntN(2) == 0 {
			out.Slices[i] = wrongSlice(s, rng)
		}
	}
	return &out
}

// Objects returns all objects of the world, with their API versions and kinds.
func (w *World) Objects() []metav1.Object {
	n, c := node(w.NodeLabels), w.serviceCIDR()
	n.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	c.TypeMeta = metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"}
	out := []metav1.Object{n, c}
	for _, s := range w.Services {
		s = s.DeepCopy()
		s.TypeMeta = metav1.TypeMeta{APIVersion: v1.SchemeGroupVersion.String(), Kind: "Service"}
		out = append(out, s)
	}
	for _, s := range w.Slices {
		s = s.DeepCopy()
		s.TypeMeta = metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"}
		out = append(out, s)
	}
	return out
}

// Flags returns the daemon's flags for the configuration in a mode.
func (c Config) Flags(mode string) []string {
	var cidrs []string
	for _, p := range clusterCIDRs {
		cidrs = append(cidrs, p.String())
	}
	out := append([]string{"--hostname-override=" + nodeName, fmt.Sprintf("--masquerade-all=%v", c.MasqueradeAll)}, map[string][]string{
		"":             {"--cluster-cidr=" + strings.Join(cidrs, ",")},
		"cluster-cidr": {"--cluster-cidr=" + strings.Join(cidrs, ",")},
		"node-cidr":    {"--detect-local-mode=NodeCIDR"},
		"bridge":       {"--detect-local-mode=BridgeInterface", "--pod-bridge-interface=" + lab.Bridge},
		"prefix":       {"--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=" + lab.Bridge[:2]},
	}[c.DetectLocal]...)
	if c.LocalhostNodePort != nil {
		out = append(out, fmt.Sprintf("--iptables-localhost-nodeports=%v", *c.LocalhostNodePort))
	}
	if c.RefuseLoopback {
		out = append(out, "--feature-gates=KubeProxyNFTablesLocalhostNodePorts=true")
	}
	if len(c.ExternalIPs) > 0 {
		out = append(out, "--allowed-external-ips="+strings.Join(c.ExternalIPs, ","))
	}
	if len(c.LoadBalancerIPs) > 0 {
		out = append(out, "--allowed-load-balancer-ips="+strings.Join(c.LoadBalancerIPs, ","))
	}
	switch {
	case slices.Contains(c.NodePortAddresses, "all"):
		return append(out, "--nodeport-addresses=0.0.0.0/0,::/0")
	case len(c.NodePortAddresses) > 0:
		return append(out, "--nodeport-addresses="+strings.Join(c.NodePortAddresses, ","))
	case mode == "nftables": // other modes are tested with its settings, but have another default
		return append(out, "--nodeport-addresses=primary")
	default:
		return out
	}
}

// RunThemes runs the groups of the table by theme against a daemon, and calls told with the number
// of cases of each theme that passed. It leaves out stories, which need direct control of the
// dataplane, and the decision tables.
func RunThemes(t *testing.T, d Dataplane, told func(theme string, cases int)) {
	parts, err := loadParts()
	if err != nil {
		t.Fatal(err)
	}
	b := newTestbed(t, d)
	for _, p := range parts {
		if p.Theme == decisionTheme {
			continue // the themes contain samples of them
		}
		cases := 0
		passed := t.Run(p.Theme, func(t *testing.T) {
			for _, g := range p.Groups {
				if g.unsupportedByDaemon(d) {
					continue
				}
				t.Run(g.ID, func(t *testing.T) {
					failures := b.runGroup(t.Context(), g)
					report(t, g.casesFor(d.Mode), failures)
					cases += len(g.casesFor(d.Mode)) - len(failures) // in a theme that passes, the failures are skipped cases
				})
			}
		})
		if passed && cases > 0 {
			told(p.Theme, cases)
		}
	}
}

// unsupportedByDaemon reports whether a group needs what flags cannot set: Service CIDRs, which the
// source determines; NodePorts on loopback addresses, which mode nftables serves only if no mode
// was configured; and rows that the mode refuses, because the daemon then never reports everything
// in force.
func (g *Group) unsupportedByDaemon(d Dataplane) bool {
	local := g.Config.LocalhostNodePort
	if len(g.Config.ServiceCIDRs) > 0 || d.Mode == "nftables" && local != nil && *local {
		return true
	}
	refused := func(p v1.ServicePort) bool { return p.Protocol == v1.ProtocolSCTP && d.Refuses[proxy.SCTP] != "" }
	return slices.ContainsFunc(g.worlds(), func(w *World) bool {
		return slices.ContainsFunc(w.Services, func(s *v1.Service) bool { return slices.ContainsFunc(s.Spec.Ports, refused) })
	})
}
