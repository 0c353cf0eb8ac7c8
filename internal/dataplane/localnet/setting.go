package localnet

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"k8s.io/klog/v2"

	"sluice/internal/kernel/sysctl"
)

// Name is the name of the setting, for all links.
const Name = "net/ipv4/conf/all/route_localnet"

// note ends the comment of a guard if a service proxy has set route_localnet.
const note = ", route_localnet is 1 because of this proxy"

// Guard is whether rules must keep other hosts from loopback addresses, and whether their
// comment carries the note.
type Guard struct{ InForce, Noted bool }

// Comment returns the comment of the guard: a text and, if needed, the note.
func (g Guard) Comment(text string) string {
	if g.Noted {
		return text + note
	}
	return text
}

// Noted reports whether a guard's comment carries the note.
func Noted(comment string) bool { return strings.Contains(comment, note) }

// Traces is what service proxies left that shows who set route_localnet.
type Traces struct {
	Guarded bool // there is a guard of ours
	Noted   bool // which carries the note
	Proxied bool // there is a proxy that sets route_localnet and leaves no note
}

// And returns the union of two traces.
func (t Traces) And(o Traces) Traces {
	return Traces{t.Guarded || o.Guarded, t.Noted || o.Noted, t.Proxied || o.Proxied}
}

// Opened reports whether a service proxy set route_localnet. A guard of ours without the
// note means that it was on before.
func (t Traces) Opened() bool { return t.Noted || !t.Guarded && t.Proxied }

// IsOn reports whether the setting is on. It is off if it cannot be read.
func IsOn(k sysctl.Interface) bool {
	v, err := sysctl.ReadInt(k, Name)
	return err == nil && v != 0
}

// Reset switches the setting off. It describes what it did, or returns "" if the setting
// was off already. After an error the guard must stay.
func Reset(k sysctl.Interface) (done string, err error) {
	if !IsOn(k) {
		return "", nil
	}
	if err := k.Write(Name, "0"); err != nil {
		return "", fmt.Errorf("net.ipv4.conf.all.route_localnet stays 1, set it to 0 on the host or neighbouring hosts may reach loopback addresses: %w", err)
	}
	return "net.ipv4.conf.all.route_localnet=1, which a service proxy had set", nil
}

// Setting manages route_localnet for a dataplane. The dataplane writes its rules after Guard
// and before Open. A nil Setting is valid and does nothing: it is that of a dataplane
// without IPv4, the only family whose loopback addresses may serve NodePorts.
type Setting struct {
	kernel sysctl.Interface                      // nil if we must not change the setting
	others func(context.Context) (Traces, error) // of other modes; nil if there are none
	known  atomic.Bool                           // ours is known
	wanted bool                                  // loopback addresses are to serve NodePorts
	inUse  atomic.Bool                           // loopback addresses serve NodePorts
	ours   bool                                  // a service proxy has set the setting, or is about to
	failed bool                                  // the last change of the setting failed, which was logged
}

// New returns a Setting. Others returns the traces of other modes; it may be nil.
func New(k sysctl.Interface, others func(context.Context) (Traces, error)) *Setting {
	return &Setting{kernel: k, others: others}
}

// OwnerKnown reports whether Find has found out who set the setting. From then on it is managed
// here, and the clean-up of other modes must leave it alone. It is safe for concurrent use.
func (s *Setting) OwnerKnown() bool { return s != nil && s.known.Load() }

// Find finds out who set the setting, by the traces of the same mode and, if those are not
// sufficient, of other modes. If that fails, the next call tries again; once it has
// succeeded, Find does nothing.
func (s *Setting) Find(ctx context.Context, own Traces) {
	if s == nil || s.kernel == nil || s.OwnerKnown() {
		return
	}
	if s.others != nil && !own.Noted && IsOn(s.kernel) {
		others, err := s.others(ctx)
		if err != nil && !others.Noted {
			klog.FromContext(ctx).Error(err, "Cannot find out whether a service proxy set a kernel setting, leaving it unchanged until the next full sync", "setting", Name)
			return
		}
		own = own.And(others)
	}
	s.ours = own.Opened()
	s.known.Store(true)
}

// Guard returns the guard that rules must have from now on. Wanted is whether loopback
// addresses are to serve NodePorts. If not, Guard switches off a setting that a service
// proxy switched on; if that fails, the guard stays.
func (s *Setting) Guard(ctx context.Context, wanted bool) Guard {
	if s == nil {
		return Guard{}
	}
	if s.wanted = wanted; s.kernel == nil {
		return Guard{InForce: wanted}
	}
	on := IsOn(s.kernel)
	switch {
	case wanted:
		s.ours = s.ours || !on
	case s.ours && on:
		s.ours = !s.write(ctx, "0", "Cannot reset a kernel setting that NodePorts on loopback addresses no longer need, the rules that guard loopback stay; set it to 0 on the host")
	default:
		s.ours = false
	}
	return Guard{InForce: wanted || s.ours, Noted: s.ours}
}

// Open switches the setting on if that is wanted. The guard must be in force. If the setting
// cannot be changed, everything else works.
func (s *Setting) Open(ctx context.Context) {
	if s == nil {
		return
	}
	s.inUse.Store(s.wanted)
	if s.kernel != nil && s.wanted && s.ours && !IsOn(s.kernel) {
		s.write(ctx, "1", "NodePorts stay closed on loopback addresses, set the setting to 1 on the host or use --iptables-localhost-nodeports=false")
	}
}

// InUse reports whether loopback addresses serve NodePorts. It is safe for concurrent use.
func (s *Setting) InUse() bool { return s != nil && s.inUse.Load() }

// Prepare implements Prepare of a mode, which passes its own traces and a function that
// writes its guard. The guard is written before the setting is switched on, and the daemon
// takes it over.
func (s *Setting) Prepare(ctx context.Context, own Traces, opens bool, writeGuard func(Guard) error) error {
	s.Find(ctx, own)
	if guard := s.Guard(ctx, opens); opens { // otherwise the daemon removes the guard
		if err := writeGuard(guard); err != nil {
			return err
		}
		s.Open(ctx)
	}
	return nil
}

// write sets the setting and reports whether it succeeded. It logs the message if it fails
// for the first time in a row.
func (s *Setting) write(ctx context.Context, value, message string) bool {
	err := s.kernel.Write(Name, value)
	if err != nil && !s.failed {
		klog.FromContext(ctx).Error(err, message, "setting", Name)
	}
	s.failed = err != nil
	return err == nil
}
