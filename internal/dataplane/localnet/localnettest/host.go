package localnettest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// Settings is the fake of package sysctl.
type Settings interface {
	sysctl.Interface
	Refuse(name string, err error)
}

// Mode is a mode on a host. Whatever it writes, it must call Check of the host after it.
type Mode interface {
	// Open returns a new dataplane, as after a restart of the daemon.
	Open() proxy.Dataplane

	// Prepare does what --init-only does.
	Prepare(ctx context.Context, opens bool) error

	// Guarded reports whether a guard is in force.
	Guarded(g localnet.Guard) bool

	// State returns a state with some rows, and with NodePorts at these addresses.
	State(NodePorts) *proxy.State
}

// Host is a host in memory. After every change, at which a daemon may be killed, it checks that
// loopback is not open without a guard.
type Host struct {
	*testing.T
	Settings
	Mode
	Others localnet.Traces // of other modes
	Daemon proxy.Dataplane
	open   bool // loopback was open before us
}

// Traces returns the traces of other modes.
func (h *Host) Traces(context.Context) (localnet.Traces, error) { return h.Others, nil }

// Write writes a setting.
func (h *Host) Write(name, value string) error {
	err := h.Settings.Write(name, value)
	h.Check("writing " + value)
	return err
}

// Check fails the test if loopback is open and has no guard with the note.
func (h *Host) Check(after string) {
	h.Helper()
	if !h.open && localnet.IsOn(h) && !h.Guarded(localnet.Guard{InForce: true, Noted: true}) && !h.Others.Guarded {
		h.Errorf("after %s loopback is open without a guard that has the note", after)
	}
}

// Step is something that happens on a host.
type Step func(*Host) error

// Killed replaces the daemon, which did nothing at its end.
func Killed(h *Host) error {
	h.Daemon = h.Open()
	return nil
}

// ReadOnly makes the setting read-only.
func ReadOnly(h *Host) error {
	h.Refuse(localnet.Name, errors.New("read-only file system"))
	return nil
}

// Prepare does what --init-only does, before a new daemon starts.
func Prepare(opens bool) Step {
	return func(h *Host) error { return errors.Join(h.Prepare(h.Context(), opens), Killed(h)) }
}

// Fails is a step that must fail.
func Fails(s Step) Step {
	return func(h *Host) error {
		if s(h) == nil {
			return errors.New("succeeded")
		}
		return nil
	}
}

// NodePorts are the addresses that serve NodePorts.
type NodePorts struct {
	Localhost bool // loopback addresses may be among them
	In        []netip.Prefix
}

// The NodePorts of a host: at its loopback addresses, at some of them, or at none.
var (
	Opened  = NodePorts{true, []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}
	Partly  = NodePorts{true, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/16")}}
	Closed  = NodePorts{true, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	Unasked = NodePorts{false, Opened.In}
)

// Sync has the daemon sync a state with the NodePorts.
func (p NodePorts) Sync(h *Host) error { return proxytest.Sync(h.Context(), h.Daemon, h.State(p)) }

// Apply has the daemon apply a change of the node.
func (p NodePorts) Apply(h *Host) error {
	return proxytest.Apply(h.Context(), h.Daemon, &proxy.Delta{Node: h.State(p).Node})
}

// History is what happens on a host, and how it ends.
type History struct {
	Name    string
	Setting string // at first; "1" was there before us
	Others  localnet.Traces
	Steps   []Step
	Want    string // of the setting
	Guard   localnet.Guard
}

// What guards a host at the end.
var (
	Plain = localnet.Guard{InForce: true}
	Noted = localnet.Guard{InForce: true, Noted: true}
)

var kubeProxys, otherModes = localnet.Traces{Proxied: true}, localnet.Traces{Guarded: true, Noted: true}

var histories = []History{
	{"opened", "0", localnet.Traces{}, []Step{Opened.Sync, Killed, Opened.Sync}, "1", Noted},
	{"opened in part", "0", localnet.Traces{}, []Step{Partly.Sync}, "1", Noted},
	{"opened in part live", "0", localnet.Traces{}, []Step{Closed.Sync, Partly.Apply}, "1", Noted},
	{"not asked for", "0", localnet.Traces{}, []Step{Unasked.Sync}, "0", localnet.Guard{}},
	{"not asked for live", "0", localnet.Traces{}, []Step{Opened.Sync, Unasked.Apply}, "0", localnet.Guard{}},
	{"excluded at a restart", "0", localnet.Traces{}, []Step{Opened.Sync, Killed, Closed.Sync}, "0", localnet.Guard{}},
	{"excluded live", "0", localnet.Traces{}, []Step{Opened.Sync, Closed.Apply}, "0", localnet.Guard{}},
	{"included again live", "0", localnet.Traces{}, []Step{Opened.Sync, Closed.Apply, Opened.Apply}, "1", Noted},
	{"the administrator's", "1", localnet.Traces{}, []Step{Opened.Sync, Killed, Opened.Sync}, "1", Plain},
	{"the administrator's, excluded live", "1", localnet.Traces{}, []Step{Opened.Sync, Closed.Apply}, "1", localnet.Guard{}},
	{"the administrator's, excluded at a restart", "1", localnet.Traces{}, []Step{Closed.Sync, Killed, Closed.Sync}, "1", localnet.Guard{}},
	{"the administrator's, included at a restart", "1", localnet.Traces{}, []Step{Opened.Sync, Closed.Apply, Killed, Opened.Sync}, "1", Plain},
	{"kube-proxy's", "1", kubeProxys, []Step{Opened.Sync}, "1", Noted},
	{"kube-proxy's, not wanted", "1", kubeProxys, []Step{Closed.Sync}, "0", localnet.Guard{}},
	{"another mode's", "1", otherModes, []Step{Opened.Sync}, "1", Noted},
	{"another mode's, not wanted", "1", otherModes, []Step{Closed.Sync}, "0", localnet.Guard{}},
	{"read-only", "0", localnet.Traces{}, []Step{ReadOnly, Opened.Sync}, "0", Noted},
	{"read-only, excluded live", "0", localnet.Traces{}, []Step{Opened.Sync, ReadOnly, Closed.Apply}, "1", Noted},
	{"read-only, excluded at a restart", "0", localnet.Traces{}, []Step{Opened.Sync, ReadOnly, Killed, Closed.Sync}, "1", Noted},
	{"prepared", "0", localnet.Traces{}, []Step{Prepare(true)}, "1", Noted},
	{"prepared, a daemon that may not write", "0", localnet.Traces{}, []Step{Prepare(true), ReadOnly, Opened.Sync}, "1", Noted},
	{"prepared where it was excluded", "0", localnet.Traces{}, []Step{Closed.Sync, Killed, Prepare(true)}, "1", Noted},
	{"prepared to be excluded", "0", localnet.Traces{}, []Step{Opened.Sync, Killed, Prepare(false), Closed.Sync}, "0", localnet.Guard{}},
}

// Run goes through the histories of all modes and those of one, each on a new host. Equip gives the
// host its settings, with the value that the setting has at first, and its mode.
func Run(t *testing.T, equip func(h *Host, setting string), more ...History) {
	for _, x := range slices.Concat(histories, more) {
		t.Run(x.Name, func(t *testing.T) {
			h := &Host{T: t, Others: x.Others, open: x.Setting == "1"}
			equip(h, x.Setting)
			for i, step := range append([]Step{Killed}, x.Steps...) {
				if err := step(h); err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
			}
			got, _ := h.Read(localnet.Name)
			if diff := fmt.Sprint(got, h.Guarded(Plain), h.Guarded(Noted)); diff != fmt.Sprint(x.Want, x.Guard == Plain, x.Guard == Noted) {
				t.Errorf("setting, guard without and with a note are %s; want %s, %+v", diff, x.Want, x.Guard)
			}
		})
	}
}
