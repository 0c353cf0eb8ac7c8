package traffic

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"sluice/internal/conformance/traffic"
	"sluice/test/daemon/testbed"
)

// inPhase puts some pods into a phase.
func inPhase(to phase, pods ...member) func(*moment) {
	return func(m *moment) {
		for i, x := range m.members {
			if slices.ContainsFunc(pods, func(p member) bool { return p.pod == x.pod }) {
				m.members[i].phase = to
			}
		}
	}
}

// remove takes pods out of the slice.
func remove(pods ...member) func(*moment) {
	return func(m *moment) {
		m.members = slices.DeleteFunc(m.members, func(x member) bool {
			return slices.ContainsFunc(pods, func(p member) bool { return p.pod == x.pod })
		})
	}
}

// both is several changes at once.
func both(changes ...func(*moment)) func(*moment) {
	return func(m *moment) {
		for _, c := range changes {
			c(m)
		}
	}
}

// add adds pods to the slice.
func add(pods ...member) func(*moment) {
	return func(m *moment) { m.members = append(m.members, pods...) }
}

// move lets requests come until flows of datagrams must have moved, and a while longer.
func (w *web) move() {
	testbed.Pause(w.T, traffic.Scaled(moveTime))
	w.hold()
}

// end lets pods that terminate serve no more, and then closes them.
func (w *web) end(pods ...member) {
	w.T.Helper()
	w.publish(inPhase(ending, pods...))
	w.move()
	for _, p := range pods {
		if err := p.close(); err != nil {
			w.T.Error(err)
		}
	}
}

// rollOut replaces all pods as a Deployment does with maxSurge and maxUnavailable of 25%: at
// no time are fewer than three quarters of them ready.
func (w *web) rollOut() {
	old := slices.Clone(w.now.members)
	quarter := len(old) / 4
	var gone, unready []member
	for len(old) > 0 {
		wave, next := old[:min(quarter, len(old))], w.newMembers(min(quarter, len(old)), starting)
		old = old[len(wave):]
		w.publish(both(remove(gone...), inPhase(ready, unready...), inPhase(terminating, wave...), add(next...)))
		w.hold()
		w.end(wave...)
		gone, unready = wave, next
	}
	w.publish(both(remove(gone...), inPhase(ready, unready...)))
}

// scaleToZero lets all pods terminate, and starts others later.
func (w *web) scaleToZero() {
	old := slices.Clone(w.now.members)
	w.publish(inPhase(terminating, old...))
	w.hold()
	w.end(old...)
	w.publish(remove(old...))
	w.hold()
	fresh := w.newMembers(len(old), starting)
	w.publish(add(fresh...))
	w.hold()
	w.publish(inPhase(ready, fresh...))
}

// spec changes the Service.
func (w *web) spec(change func(*v1.ServiceSpec)) {
	w.T.Helper()
	w.publish(func(m *moment) { change(&m.service.Spec) })
	w.hold()
}

// hereTerminating lets this node's pods terminate and come back, which goes on being served by
// them where only they may answer.
func (w *web) hereTerminating() {
	here := slices.DeleteFunc(slices.Clone(w.now.members), func(m member) bool { return !m.here })
	w.publish(inPhase(terminating, here...))
	w.hold()
	w.publish(inPhase(ending, here...))
	w.move()
	w.publish(inPhase(ready, here...))
	w.hold()
}

func (w *web) externalPolicy() {
	w.spec(func(s *v1.ServiceSpec) { s.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal })
	w.hereTerminating()
	w.spec(func(s *v1.ServiceSpec) { s.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyCluster })
}

func (w *web) internalPolicy() {
	w.spec(func(s *v1.ServiceSpec) { s.InternalTrafficPolicy = ptr.To(v1.ServiceInternalTrafficPolicyLocal) })
	w.hereTerminating()
	w.spec(func(s *v1.ServiceSpec) { s.InternalTrafficPolicy = ptr.To(v1.ServiceInternalTrafficPolicyCluster) })
}

// affinity also takes away the pods that most clients are remembered for.
func (w *web) affinity() {
	w.spec(func(s *v1.ServiceSpec) { s.SessionAffinity = v1.ServiceAffinityClientIP })
	half := slices.Clone(w.now.members[:len(w.now.members)/2])
	w.publish(inPhase(ending, half...))
	w.move()
	w.publish(inPhase(ready, half...))
	w.hold()
	w.spec(func(s *v1.ServiceSpec) { s.SessionAffinity = v1.ServiceAffinityNone })
}

func (w *web) distribution() {
	w.spec(func(s *v1.ServiceSpec) { s.TrafficDistribution = ptr.To(v1.ServiceTrafficDistributionPreferSameNode) })
	w.hereTerminating()
	w.spec(func(s *v1.ServiceSpec) { s.TrafficDistribution = nil })
}

// targetPort moves two ports to others of the same pods.
func (w *web) targetPort() {
	for _, m := range w.now.members {
		if err := m.listen(w.hosts, answerPort+10); err != nil {
			w.T.Fatal(err)
		}
	}
	for _, port := range []uint16{answerPort + 10, answerPort} {
		w.publish(func(m *moment) {
			for i, p := range m.service.Spec.Ports {
				if p.Name != "kept" && p.Name != "log" {
					m.service.Spec.Ports[i].TargetPort.IntVal = int32(port)
					m.targets[p.Name] = port
				}
			}
		})
		w.move()
	}
}

// shift moves the Service's ports or NodePorts, and back.
func (w *web) shift(by int32, of func(*v1.ServicePort) *int32) {
	for _, d := range []int32{by, -by} {
		w.spec(func(s *v1.ServiceSpec) {
			for i := range s.Ports {
				*of(&s.Ports[i]) += d
			}
		})
		w.move()
	}
}

func (w *web) port() { w.shift(1000, func(p *v1.ServicePort) *int32 { return &p.Port }) }

func (w *web) nodePort() { w.shift(1000, func(p *v1.ServicePort) *int32 { return &p.NodePort }) }

// renamed is what follows a port's name once it has another.
const renamed = "-2"

// rename gives ports other names, first in the Service and then in the slice, as its
// controller follows. In between the Service has no endpoints.
func (w *web) rename() {
	w.spec(func(s *v1.ServiceSpec) {
		for i := range s.Ports {
			s.Ports[i].Name += renamed
		}
	})
	w.publish(func(m *moment) {
		targets := map[string]uint16{}
		for name, port := range m.targets {
			targets[strings.TrimSuffix(name, renamed)+renamed] = port
		}
		m.targets = targets
	})
	w.hold()
}

// nodeAddress gives the node one more address and takes it away, twice.
func (w *web) nodeAddress() {
	for range 2 {
		w.publish(func(m *moment) {
			m.local = append(m.local, guestAddr)
			if err := w.Lab.Node().Bind(guestAddr); err != nil {
				w.T.Fatal(err)
			}
		})
		w.hold()
		w.publish(func(m *moment) {
			m.local = m.local[:len(m.local)-1]
			if err := w.Lab.Node().Unbind(guestAddr); err != nil {
				w.T.Fatal(err)
			}
		})
		w.hold()
	}
}
