package resolve

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bornAt sets when a Service was created.
func bornAt(seconds int64) func(*v1.Service) {
	return func(s *v1.Service) { s.CreationTimestamp = metav1.Unix(seconds, 0) }
}

// TestConflicts lets two Services claim the same address, in both orders of arrival.
func TestConflicts(t *testing.T) {
	tests := []struct {
		name     string
		a, b     *v1.Service
		rows     []string
		problems []string
	}{
		{
			"older wins", serviceOf("a/x", "10.96.0.1", externalIPs("192.0.2.1"), bornAt(2)),
			serviceOf("b/y", "10.96.0.2", externalIPs("192.0.2.1"), bornAt(1)),
			[]string{
				"a/x:http/TCP/IPv4 ClusterIP=10.96.0.1:80" + plain,
				"b/y:http/TCP/IPv4 ClusterIP=10.96.0.2:80 ExternalIP=192.0.2.1:80" + plain,
			},
			[]string{"Service a/x: spec.externalIPs[0]: 80/TCP is already claimed by Service b/y"},
		},
		{
			"kind before age", serviceOf("a/x", "10.96.0.1", externalIPs("203.0.113.1"), bornAt(1)),
			serviceOf("b/y", "10.96.0.2", loadBalancer("203.0.113.1"), bornAt(2)),
			[]string{
				"a/x:http/TCP/IPv4 ClusterIP=10.96.0.1:80" + plain,
				"b/y:http/TCP/IPv4 ClusterIP=10.96.0.2:80 LoadBalancer=203.0.113.1:80" + plain,
			},
			[]string{"Service a/x: spec.externalIPs[0]: 80/TCP is already claimed by Service b/y"},
		},
		{
			"ClusterIP is safe", serviceOf("a/x", "10.96.0.1", externalIPs("10.96.0.2"), bornAt(1)), serviceOf("b/y", "10.96.0.2", bornAt(2)),
			[]string{
				"a/x:http/TCP/IPv4 ClusterIP=10.96.0.1:80" + plain,
				"b/y:http/TCP/IPv4 ClusterIP=10.96.0.2:80" + plain,
			},
			[]string{"Service a/x: spec.externalIPs[0]: 80/TCP is already claimed by Service b/y"},
		},
		{
			"namespace, then name", serviceOf("a/x", "10.96.0.1"), serviceOf("a/y", "10.96.0.1"),
			[]string{
				"a/x:http/TCP/IPv4 ClusterIP=10.96.0.1:80" + plain,
				"a/y:http/TCP/IPv4" + plain,
			},
			[]string{"Service a/y: spec.clusterIPs[0]: 80/TCP is already claimed by Service a/x"},
		},
		{
			"NodePort in both families", serviceOf("a/x", "", nodePort(30080), dualStack("10.96.0.1", "fd00::1")),
			serviceOf("b/y", "", nodePort(30080), dualStack("10.96.0.2", "fd00::2")),
			[]string{
				"a/x:http/TCP/IPv4 ClusterIP=10.96.0.1:80 NodePort=0.0.0.0:30080" + plain,
				"a/x:http/TCP/IPv6 ClusterIP=[fd00::1]:80 NodePort=[::]:30080" + plain,
				"b/y:http/TCP/IPv4 ClusterIP=10.96.0.2:80" + plain,
				"b/y:http/TCP/IPv6 ClusterIP=[fd00::2]:80" + plain,
			},
			[]string{"Service b/y: spec.ports[0].nodePort: 30080/TCP is already claimed by Service a/x"},
		},
		{
			"other protocol", serviceOf("a/x", "10.96.0.1", nodePort(30080)),
			serviceOf("b/y", "10.96.0.2", nodePort(30080), func(s *v1.Service) { s.Spec.Ports[0].Protocol = v1.ProtocolUDP }),
			[]string{
				"a/x:http/TCP/IPv4 ClusterIP=10.96.0.1:80 NodePort=0.0.0.0:30080" + plain,
				"b/y:http/UDP/IPv4 ClusterIP=10.96.0.2:80 NodePort=0.0.0.0:30080" + plain,
			},
			nil,
		},
		{
			"other port", serviceOf("a/x", "10.96.0.1", externalIPs("192.0.2.1")),
			serviceOf("b/y", "10.96.0.2", externalIPs("192.0.2.1"), func(s *v1.Service) { s.Spec.Ports[0].Port = 81 }),
			[]string{
				"a/x:http/TCP/IPv4 ClusterIP=10.96.0.1:80 ExternalIP=192.0.2.1:80" + plain,
				"b/y:http/TCP/IPv4 ClusterIP=10.96.0.2:81 ExternalIP=192.0.2.1:81" + plain,
			},
			nil,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantState(t, resolverOf(t, tt.a, tt.b), tt.rows, tt.problems)
			r := resolverOf(t, tt.b)
			add(t, r, tt.a)
			r.Update()
			wantState(t, r, tt.rows, tt.problems)
		})
	}
}

// TestConflictWithinService lets two ports of one Service claim the same NodePort.
func TestConflictWithinService(t *testing.T) {
	s := serviceOf("a/x", "10.96.0.1", nodePort(30080), func(s *v1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "alt", Port: 81, NodePort: 30080})
	})
	wantState(t, resolverOf(t, s),
		[]string{
			"a/x:alt/TCP/IPv4 ClusterIP=10.96.0.1:81 NodePort=0.0.0.0:30080" + plain,
			"a/x:http/TCP/IPv4 ClusterIP=10.96.0.1:80" + plain,
		},
		[]string{"Service a/x: spec.ports[0].nodePort: 30080/TCP is already claimed by Service a/x"})
}

// TestConflictEnds checks that the next claimant gets the address in the same step, and
// loses it when one with precedence arrives.
func TestConflictEnds(t *testing.T) {
	a, b, c := serviceOf("a/x", "10.96.0.1", externalIPs("192.0.2.1")),
		serviceOf("b/x", "10.96.0.2", externalIPs("192.0.2.1")),
		serviceOf("c/x", "10.96.0.3", externalIPs("192.0.2.1"))
	r := resolverOf(t, c, b, a)
	owner := func() string {
		for k, row := range r.State().Rows {
			if len(row.Frontends) == 2 {
				return k.Namespace
			}
		}
		return "nobody"
	}
	steps := []struct {
		name    string
		do      func()
		owner   string
		changed int
	}{
		{"the winner goes", func() { remove(t, r, a) }, "b", 2},
		{"it comes back", func() { add(t, r, a) }, "a", 2},
		{"a loser goes", func() { remove(t, r, b) }, "a", 1},
		{"the winner gives it up", func() { add(t, r, serviceOf("a/x", "10.96.0.1")) }, "c", 2},
		{"the last one goes", func() { remove(t, r, c) }, "nobody", 1},
	}
	for _, step := range steps {
		step.do()
		d := r.Update()
		if got := len(d.Upserts) + len(d.Removes); owner() != step.owner || got != step.changed {
			t.Errorf("%s: owner %s, %d rows changed; want %s, %d", step.name, owner(), got, step.owner, step.changed)
		}
	}
}

// TestConflictAfterRecreation makes the older Service the younger one.
func TestConflictAfterRecreation(t *testing.T) {
	a := serviceOf("a/x", "10.96.0.1", externalIPs("192.0.2.1"), bornAt(1))
	r := resolverOf(t, a, serviceOf("b/y", "10.96.0.2", externalIPs("192.0.2.1"), bornAt(2)))
	r.Services.Update(a, nil)
	r.Services.Update(nil, serviceOf("a/x", "10.96.0.1", externalIPs("192.0.2.1"), bornAt(3)))
	if d := r.Update(); len(d.Upserts) != 2 {
		t.Errorf("step %+v; want both rows", d)
	}
	if row := rowNamed(t, r.State(), "b/y:http/TCP/IPv4"); len(row.Frontends) != 2 {
		t.Errorf("row %v; want the external IP in it", row)
	}
}

// TestManyRivals updates the owner of a claim that a thousand others want: their problems
// are not updated unless the owner is removed.
func TestManyRivals(t *testing.T) {
	const rivals = 1000
	r := New(Settings{NodeName: testNode})
	rival := func(i int, edit ...func(*v1.Service)) *v1.Service {
		external := func(s *v1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1"} }
		return serviceOf(fmt.Sprintf("ns/svc-%04d", i), fmt.Sprintf("10.96.%d.%d", i>>8, i&255), append(edit, external)...)
	}
	for i := range rivals {
		add(t, r, rival(i))
	}
	r.Update()
	if found, resolved := r.TakeProblems(); len(found) != rivals-1 || len(resolved) != 0 {
		t.Errorf("%d problems found, %d resolved; want %d, 0", len(found), len(resolved), rivals-1)
	}
	add(t, r, rival(0, func(s *v1.Service) { s.Spec.SessionAffinity = v1.ServiceAffinityClientIP }))
	r.Update()
	if n := len(r.problems.was); n != 0 {
		t.Errorf("%d problems were touched; want none", n)
	}
	remove(t, r, rival(0))
	r.Update()
	if found, resolved := r.TakeProblems(); len(found) != rivals-2 || len(resolved) != rivals-1 {
		t.Errorf("%d problems found, %d resolved; want %d, %d", len(found), len(resolved), rivals-2, rivals-1)
	}
}
