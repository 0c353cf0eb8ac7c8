package localnet

import (
	"context"
	"sync/atomic"

	"k8s.io/klog/v2"

	"sluice/internal/kernel/sysctl"
)

// Setting is the setting in the hands of a dataplane that serves IPv4. Rules
// are written after Guard and before Open.
type Setting struct {
	kernel sysctl.Interface                      // nil: it is not for us to change
	others func(context.Context) (Traces, error) // of other modes; nil: there are none
	known  atomic.Bool                           // whose it was when we came
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
func (s *Setting) Settled() bool { return s.known.Load() }

// Find finds out whose the setting is, once, by what the rules of the same mode
// tell and, where that is not enough, those of others.
func (s *Setting) Find(ctx context.Context, own Traces) {
	if s.kernel == nil || s.Settled() {
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
	if s.kernel == nil {
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

// Open switches the setting on, once the guard is in force. Where it cannot be
// changed, everything else works without.
func (s *Setting) Open(ctx context.Context) {
	if s.kernel != nil && s.ours && !IsOn(s.kernel) {
		s.write(ctx, "1", "NodePorts stay closed on loopback addresses, set it on the host or use --iptables-localhost-nodeports=false")
	}
}

func (s *Setting) write(ctx context.Context, value, otherwise string) bool {
	err := s.kernel.Write(Name, value)
	if err != nil && !s.failed {
		klog.FromContext(ctx).Error(err, otherwise, "setting", Name)
	}
	s.failed = err != nil
	return err == nil
}
