package cluster

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/proxy"
	"sluice/test/cluster/testbed"
)

// TestDatagramsFollow sends datagrams from one and the same port while the
// endpoint changes. For UDP that is one flow, which would never end by itself:
// it has to be moved to the new endpoint, also when there was none for a while.
func TestDatagramsFollow(t *testing.T) {
	s := newScene(t)
	pods := s.pods("web")
	svc := s.service("web", func(svc *v1.Service) { svc.Spec.Type = v1.ServiceTypeNodePort })
	s.publish(svc, ready(pods[0])...)
	s.expectEverywhere("web-1", clusterIPs(svc)...)
	var talks []*talk
	for family, to := range clusterIPs(svc) {
		talks = append(talks, s.talk(s.clients[0], to), s.talk(outside(bed.Nodes[0]), nodePorts(bed.Nodes[0], svc)[family]))
	}
	s.follow("at first", pods[0], talks)
	s.publish(svc, ready(pods[1])...)
	s.follow("after the endpoint was replaced", pods[1], talks)
	s.publish(svc)
	s.expectEverywhere("refused", clusterIPs(svc)...)
	s.publish(svc, ready(pods[2])...)
	s.follow("after there was none", pods[2], talks)
}

// talk is datagrams from one port.
type talk struct {
	net.Conn
	name string
}

func (s *scene) talk(from place, to netip.AddrPort) *talk {
	s.Helper()
	conn, err := from.host.Dial(s.Context(), proxy.UDP, from.addrs[proxy.FamilyOf(to.Addr())], to)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = conn.Close() })
	return &talk{conn, fmt.Sprintf("datagrams from %s to %v", from.name, to)}
}

// ask sends a datagram and returns the answer.
func (t *talk) ask() string {
	answer := make([]byte, 512)
	err := t.SetDeadline(time.Now().Add(patience))
	if err == nil {
		_, err = t.Write([]byte("?"))
	}
	n := 0
	if err == nil {
		n, err = t.Read(answer)
	}
	if err != nil {
		return err.Error()
	}
	return string(answer[:n])
}

// follow waits until a pod answers all talks.
func (s *scene) follow(when string, p *testbed.Pod, talks []*talk) {
	s.Helper()
	for _, t := range talks {
		s.await(when+": "+t.name, p.Name, func() string {
			answer := t.ask()
			own, _, _ := strings.Cut(answer, " ")
			by, err := netip.ParseAddrPort(own)
			if err != nil {
				return answer
			}
			return s.names[by.Addr()]
		})
	}
}
