package config

import (
	"cmp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ipvs reads what is mode ipvs's own.
func (r *reading) ipvs() {
	o := r.o.IPVS
	r.c.IPVS = IPVSSettings{
		Scheduler:     cmp.Or(o.Scheduler, defaultScheduler),
		StrictARP:     o.StrictARP,
		TCPTimeout:    r.natural(FieldIPVSTCPTimeout, o.TCPTimeout.Duration),
		TCPFinTimeout: r.natural(FieldIPVSTCPFinTimeout, o.TCPFinTimeout.Duration),
		UDPTimeout:    r.natural(FieldIPVSUDPTimeout, o.UDPTimeout.Duration),
	}
	for _, item := range o.ExcludeCIDRs {
		p, ok := parsePrefix(item)
		switch {
		case ok:
			r.c.IPVS.ExcludeCIDRs = append(r.c.IPVS.ExcludeCIDRs, p)
		case r.c.Mode == IPVS:
			r.wrong(FieldIPVSExcludeCIDRs, item, "not a CIDR like 192.0.2.0/24")
		}
	}
}

// natural returns a duration that must not be negative.
func (r *reading) natural(f Field, d time.Duration) time.Duration {
	if d < 0 {
		r.wrong(f, d, "must not be negative")
	}
	return d
}

// conntrack reads what the kernel's connection tracking should be set to.
//
// The default in a file counts as not asked for: whoever writes the effective
// configuration to a file writes all defaults, and has not said that the host's
// values are to be lowered to them.
func (r *reading) conntrack() {
	o := r.o.Conntrack
	limit := func(f Field, given *int32, fallback int) Setting[int] {
		if given == nil {
			return Setting[int]{Value: fallback}
		}
		if *given < 0 {
			r.wrong(f, *given, "must not be negative")
		}
		return Setting[int]{int(*given), r.Flags || int(*given) != fallback}
	}
	r.c.Conntrack.MaxPerCore = limit(FieldMaxPerCore, o.MaxPerCore, defaultMaxPerCore)
	r.c.Conntrack.Min = limit(FieldMin, o.Min, defaultMin)

	timeout := func(f Field, given, fallback time.Duration, explicit bool) Setting[time.Duration] {
		if !explicit {
			return Setting[time.Duration]{Value: fallback}
		}
		return Setting[time.Duration]{r.natural(f, given), r.Flags || given != fallback}
	}
	var none metav1.Duration
	established, closeWait := valueOr(o.TCPEstablishedTimeout, none), valueOr(o.TCPCloseWaitTimeout, none)
	udp, stream := o.UDPTimeout.Duration, o.UDPStreamTimeout.Duration
	r.c.Conntrack.TCPEstablishedTimeout = timeout(FieldTCPEstablishedTimeout, established.Duration,
		defaultEstablished, o.TCPEstablishedTimeout != nil)
	r.c.Conntrack.TCPCloseWaitTimeout = timeout(FieldTCPCloseWaitTimeout, closeWait.Duration,
		defaultCloseWait, o.TCPCloseWaitTimeout != nil)
	r.c.Conntrack.UDPTimeout = timeout(FieldUDPTimeout, udp, 0, udp != 0 || r.Given[FieldUDPTimeout])
	r.c.Conntrack.UDPStreamTimeout = timeout(FieldUDPStreamTimeout, stream, 0, stream != 0 || r.Given[FieldUDPStreamTimeout])
	r.c.Conntrack.TCPBeLiberal = Setting[bool]{o.TCPBeLiberal, o.TCPBeLiberal || r.Given[FieldTCPBeLiberal]}
}
