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

// Daemon is a whole daemon on a node, which hears of objects by itself, instead of
// a dataplane.
type Daemon interface {
	// Write makes a world's objects those that there are, and returns the world as it
	// has become: whoever keeps objects may have a say. Nobody waits for the daemon to
	// hear of it.
	Write(ctx context.Context, w *World) (*World, error)

	// Settle starts a daemon with the world's settings if none runs, and returns
	// when it has what was written last in force. The kernel must then be as a new
	// daemon would make it.
	Settle(ctx context.Context, w *World) error

	// Kill ends the daemon without a chance to say a word.
	Kill() error

	// Faults are what may befall the way by which it hears of objects, what is simple
	// first.
	Faults() []Fault

	Close() error
}

// RunChurn plays histories of a daemon: random objects change, the daemon is killed
// now and then, there is trouble with where it hears of objects, and after each of up
// to so many steps the kernel must be as a new daemon would make it and random packets
// must meet what the oracle says. A history that fails is told in its simplest form
// that does.
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
	told := time.Now()
	rapid.Check(t, func(r *rapid.T) {
		g := histories.Draw(r, "history")
		out.Histories, out.Steps = out.Histories+1, out.Steps+len(g.Phases)
		if failures := b.runGroup(t.Context(), g); len(failures) > 0 {
			r.Fatal(g.describeFailure(d.Mode, failures))
		}
		if out.Flows = int(b.counters.flows.Load()); time.Since(told) > time.Minute {
			told = time.Now()
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

// Churn is what histories were made of.
type Churn struct {
	Histories, Steps, Flows int
	ReturningClients        int                        // of clients to the endpoint that they were sent to in an earlier step
	Settled                 map[string][]time.Duration // after which trouble all was in force again, and how long that took
}

// killFault is the trouble that a daemon dies.
const killFault = "the daemon is killed"

func (c *Churn) String() string {
	text := fmt.Sprintf("%d histories, %d steps, %d flows, %d clients came again", c.Histories, c.Steps, c.Flows, c.ReturningClients)
	for _, name := range slices.Sorted(maps.Keys(c.Settled)) {
		text += fmt.Sprintf("; %s: %d, at most %v", name, len(c.Settled[name]), slices.Max(c.Settled[name]).Round(time.Millisecond))
	}
	return text
}

// recordSettled notes how long it took after the troubles of a phase.
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

// GoString is what the library prints of a history, which is told otherwise.
func (g *Group) GoString() string { return g.ID }

// describeFailure returns what went wrong first, and the states before it.
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

// rapidChooser makes choices that can be made simpler.
type rapidChooser struct{ *rapid.T }

func (d rapidChooser) IntN(n int) int { return rapid.IntRange(0, n-1).Draw(d.T, "choice") }

// writePhase has the daemon hear of a world, by the way that the phase says.
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

// wrong returns a world in which every other object is not as it should be.
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

// Objects returns all objects of a world, as the API has them.
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

// Flags are what tells a daemon of a mode its settings.
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
	case mode == "nftables": // of which others have the settings, but not by themselves
		return append(out, "--nodeport-addresses=primary")
	default:
		return out
	}
}

// RunThemes plays the groups of the table, by theme, against a daemon which hears of
// objects by itself, and tells of each theme how many cases were played. Stories are
// not among them, which need a dataplane that they can make wait, nor are the decision
// tables.
func RunThemes(t *testing.T, d Dataplane, told func(theme string, cases int)) {
	parts, err := loadParts()
	if err != nil {
		t.Fatal(err)
	}
	b := newTestbed(t, d)
	for _, p := range parts {
		if p.Theme == decisionTheme {
			continue // of which the themes have a part
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
					cases += len(g.casesFor(d.Mode)) - len(failures) // of a theme that passes, those are skipped
				})
			}
		})
		if passed && cases > 0 {
			told(p.Theme, cases)
		}
	}
}

// unsupportedByDaemon reports whether a group has what flags do not make: ranges, which whoever
// keeps the objects has, NodePorts on loopback, which mode nftables serves only where
// nobody asked for a mode, and rows that the mode refuses, so that a daemon never says
// that all is in force.
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
