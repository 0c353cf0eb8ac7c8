package traffic

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

// phase is where an endpoint is in its life, as the EndpointSlice controller tells it.
type phase uint8

// The phases, in order. A pod that ends is terminating and serves no more.
const (
	starting phase = iota
	ready
	terminating
	ending
)

// member is a pod in the Service's EndpointSlice.
type member struct {
	*pod
	phase phase
}

// moment is what was told to the daemon at a time, until the next one.
type moment struct {
	at      time.Time // just before it was told
	inForce time.Time // when the daemon said that it is

	service *v1.Service
	targets map[string]uint16 // the pods' ports, by name
	members []member
	local   []netip.Addr // of the node
}

// expected is what may become of a request.
type expected struct {
	to      map[netip.AddrPort]bool // who may answer a new one
	serving map[netip.AddrPort]bool // who may go on with what it has
	without traffic.Fate            // what is right if nobody may answer
	foreign bool                    // it is for no Service: anything but an answer
}

// expect says what is right for a stream, apart from the daemon's own resolver.
func (m *moment) expect(st *stream) expected {
	e := expected{to: map[netip.AddrPort]bool{}, serving: map[netip.AddrPort]bool{}, without: traffic.Refused}
	port, cluster := m.port(st)
	if port == nil {
		e.foreign = !cluster
		return e
	}
	target, known := m.targets[port.Name]
	if !known {
		return e
	}
	at := func(p *pod) netip.AddrPort { return netip.AddrPortFrom(p.addr, target) }
	for _, x := range m.members {
		if x.phase == ready || x.phase == terminating {
			e.serving[at(x.pod)] = true
		}
	}
	spec := &m.service.Spec
	hereOnly := cluster && spec.InternalTrafficPolicy != nil && *spec.InternalTrafficPolicy == v1.ServiceInternalTrafficPolicyLocal ||
		!cluster && spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal
	for _, p := range m.usable(hereOnly, spec.TrafficDistribution != nil) {
		e.to[at(p)] = true
	}
	if hereOnly && len(m.usable(false, false)) > 0 {
		e.without = traffic.Silent
	}
	return e
}

// port finds the port of the Service that a stream asks, and whether by ClusterIP.
func (m *moment) port(st *stream) (port *v1.ServicePort, cluster bool) {
	cluster = st.to.Addr().String() == m.service.Spec.ClusterIP
	for i, p := range m.service.Spec.Ports {
		at := p.NodePort
		if cluster {
			at = p.Port
		} else if !slices.Contains(m.local, st.to.Addr()) {
			continue
		}
		if string(p.Protocol) == st.protocol.String() && at == int32(st.to.Port()) {
			return &m.service.Spec.Ports[i], cluster
		}
	}
	return nil, cluster
}

// usable returns the pods for new connections: those that are ready, or if there is none
// those that still serve while they terminate.
func (m *moment) usable(hereOnly, preferHere bool) (pods []*pod) {
	for _, want := range []phase{ready, terminating} {
		var near []*pod
		for _, x := range m.members {
			if x.phase != want {
				continue
			}
			if x.here {
				near = append(near, x.pod)
			}
			if x.here || !hereOnly {
				pods = append(pods, x.pod)
			}
		}
		if preferHere && len(near) > 0 && want == ready {
			return near
		}
		if len(pods) > 0 {
			return pods
		}
	}
	return nil
}

// allows reports whether a request may have come out as it did.
func (e expected) allows(st *stream, r request) bool {
	switch {
	case r.Fate == traffic.Answered:
		return e.to[r.By] || r.open && st.protocol == proxy.UDP && e.serving[r.By]
	case len(e.to) > 0:
		return false
	case e.foreign || st.kind == oneWay || errors.Is(r.Err, unix.EPERM): // as a host hears of its own rules
		return true
	case errors.Is(r.Err, unix.ECONNRESET): // mode userspace takes a connection before it looks who is there
		return !r.open
	default:
		return r.Fate == e.without || r.Fate == traffic.Reset && e.without == traffic.Refused && st.kind == kept
	}
}

// moveTime is how long a flow of datagrams may stay with an endpoint that is gone
// after the daemon said that all is in force: flows are looked at afterwards.
const moveTime = 500 * time.Millisecond

// history is what was told to the daemon, in order.
type history []*moment

// judgement is whether a request came out as it should.
type judgement uint8

// The judgements.
const (
	right    judgement = iota
	underWay           // it or its answer was, while its flow was ended: nobody could tell any more whose it was
	wrong
)

// judge compares a request with the moments that it met. last is who answered the one
// before it, if that was of the same flow.
func (h history) judge(st *stream, r request, last netip.AddrPort) judgement {
	if st.kind == kept && r.open && r.Fate == traffic.Answered {
		return right // connections stay with their pods
	}
	ended := false
	for i, m := range h {
		if m.at.After(r.ended) {
			break
		}
		e := m.expect(st)
		if (i+1 == len(h) || !h[i+1].over(r).Before(r.begun)) && e.allows(st, r) {
			return right
		}
		if i > 0 && !m.over(r).Before(r.begun) {
			ended = ended || e.ends(h[i-1].expect(st), last)
		}
	}
	// IPVS drops the packet by which it learns that a flow has ended, and a host hears of its own. An
	// association may be aborted in the middle.
	noticed := r.Fate == traffic.Silent || errors.Is(r.Err, unix.EPERM) || st.protocol == proxy.SCTP && r.Fate != traffic.Answered
	if ended && noticed && st.protocol != proxy.TCP && st.kind != oneWay {
		return underWay
	}
	return wrong
}

// over is when all that was right before the moment is wrong for a request.
func (m *moment) over(r request) time.Time {
	if r.open {
		return m.inForce.Add(traffic.Scaled(moveTime))
	}
	return m.inForce
}

// ends reports whether a change ends the flows of an endpoint, or of any if it is not known.
func (e expected) ends(before expected, of netip.AddrPort) bool {
	for at := range before.serving {
		if !e.serving[at] && (at == of || !of.IsValid()) {
			return true
		}
	}
	return false
}
