package localnet

import (
	"context"
	"sync/atomic"

	"k8s.io/klog/v2"

	"sluice/internal/kernel/sysctl"
)

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
// looked after here, and whoever removes what other modes left need not.
// Anybody may ask at any time.
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

// InUse reports whether loopback takes NodePorts. Anybody may ask at any time.
func (s *Setting) InUse() bool { return s != nil && s.inUse.Load() }

// Prepare opens loopback addresses to NodePorts, or closes those that a service
// proxy opened, for a daemon that may not write the host's settings. The guard
// is written before they are open, and stays for the daemon.
func (s *Setting) Prepare(ctx context.Context, own Traces, opens bool, writeGuard func(Guard) error) error {
	s.Find(ctx, own)
	guard := s.Guard(ctx, opens)
	if !opens {
		return nil // the rules are the daemon's
	}
	if err := writeGuard(guard); err != nil {
		return err
	}
	s.Open(ctx)
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
