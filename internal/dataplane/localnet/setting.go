package localnet

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"k8s.io/klog/v2"

	"sluice/internal/kernel/sysctl"
)

// Name is the setting, for all links.
const Name = "net/ipv4/conf/all/route_localnet"

// note ends the comment of a guard whose setting is a service proxy's.
const note = ", route_localnet is 1 because of this proxy"

// Guard says whether rules must keep others from loopback, and carry the note.
type Guard struct{ InForce, Noted bool }

// Comment returns the comment of the guard, which begins with a text.
func (g Guard) Comment(text string) string {
	if g.Noted {
		return text + note
	}
	return text
}

// Noted reports whether a guard's comment carries the note.
func Noted(comment string) bool { return strings.Contains(comment, note) }

// Traces is what service proxies left that tells who set the setting.
type Traces struct {
	Guarded bool // a guard of ours
	Noted   bool // which carries the note
	Proxied bool // a proxy that sets the setting and leaves no note
}

// And joins the traces of two places.
func (t Traces) And(o Traces) Traces {
	return Traces{t.Guarded || o.Guarded, t.Noted || o.Noted, t.Proxied || o.Proxied}
}

// Opened reports whether it was a service proxy that set the setting. A guard of
// ours without the note says that it was on before.
func (t Traces) Opened() bool { return t.Noted || !t.Guarded && t.Proxied }

// IsOn reports whether the setting is on. What cannot be read is not.
func IsOn(k sysctl.Interface) bool {
	v, err := sysctl.ReadInt(k, Name)
	return err == nil && v != 0
}

// PutBack switches the setting off. It returns what it did, empty if there was
// nothing to do. After an error the guard must stay.
func PutBack(k sysctl.Interface) (done string, err error) {
	if !IsOn(k) {
		return "", nil
	}
	if err := k.Write(Name, "0"); err != nil {
		return "", fmt.Errorf("net.ipv4.conf.all.route_localnet stays 1, set it to 0 on the host or its neighbours may reach loopback: %w", err)
	}
	return "net.ipv4.conf.all.route_localnet=1, which a service proxy had set", nil
}

// Setting is the setting in the hands of a dataplane. Rules are written after
// Guard and before Open. A nil Setting is that of a dataplane without IPv4, the
// family whose loopback addresses may take NodePorts: it guards and opens
// nothing.
type Setting struct {
	kernel sysctl.Interface                      // nil: it is not for us to change
	others func(context.Context) (Traces, error) // of other modes; nil: there are none
	known  atomic.Bool                           // whose it was when we came
	wanted bool                                  // loopback is to take NodePorts
	inUse  atomic.Bool                           // it does
	ours   bool                                  // it is, or will be, a service proxy's and no one else's
	failed bool                                  // it cannot be changed, and that was logged
}

// New returns the setting of a kernel. Others tells what other modes left.
func New(k sysctl.Interface, others func(context.Context) (Traces, error)) *Setting {
	return &Setting{kernel: k, others: others}
}

// Settled reports whether it was found out whose the setting was: then it is
// looked after here, and not where the rules of other modes are removed. Any
// goroutine may call it.
func (s *Setting) Settled() bool { return s != nil && s.known.Load() }

// Find finds out whose the setting is, once, by what the rules of the same mode
// tell and, where that is not enough, those of others.
func (s *Setting) Find(ctx context.Context, own Traces) {
	if s == nil || s.kernel == nil || s.Settled() {
		return
	}
	if s.others != nil && !own.Noted && IsOn(s.kernel) {
		others, err := s.others(ctx)
		if err != nil && !others.Noted {
			klog.FromContext(ctx).Error(err, "Cannot tell whether a service proxy set a setting of the host, it stays as it is for now", "setting", Name)
			return
		}
		own = own.And(others)
	}
	s.ours = own.Opened()
	s.known.Store(true)
}

// Guard returns the guard that rules must have from now on. If loopback takes no
// NodePorts, a setting that is a service proxy's is put back here; if that
// cannot be done, the guard stays.
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
		s.ours = !s.write(ctx, "0", "Loopback addresses stay open and guarded though no NodePort needs it, set it to 0 on the host")
	default:
		s.ours = false
	}
	return Guard{InForce: wanted || s.ours, Noted: s.ours}
}

// Open switches the setting on if that is wanted, once the guard is in force.
// Where it cannot be changed, everything else works without.
func (s *Setting) Open(ctx context.Context) {
	if s == nil {
		return
	}
	s.inUse.Store(s.wanted)
	if s.kernel != nil && s.wanted && s.ours && !IsOn(s.kernel) {
		s.write(ctx, "1", "NodePorts stay closed on loopback addresses, set it on the host or use --iptables-localhost-nodeports=false")
	}
}

// InUse reports whether loopback takes NodePorts. Any goroutine may call it.
func (s *Setting) InUse() bool { return s != nil && s.inUse.Load() }

// Prepare is a mode's Prepare, with its own traces and what writes its guard.
// The guard is written before loopback is open, and stays for the daemon.
func (s *Setting) Prepare(ctx context.Context, own Traces, opens bool, writeGuard func(Guard) error) error {
	s.Find(ctx, own)
	if guard := s.Guard(ctx, opens); opens { // else the rules are the daemon's
		if err := writeGuard(guard); err != nil {
			return err
		}
		s.Open(ctx)
	}
	return nil
}

func (s *Setting) write(ctx context.Context, value, otherwise string) bool {
	err := s.kernel.Write(Name, value)
	if err != nil && !s.failed {
		klog.FromContext(ctx).Error(err, otherwise, "setting", Name)
	}
	s.failed = err != nil
	return err == nil
}
