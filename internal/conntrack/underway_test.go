package conntrack

import (
	"testing"
	"testing/synctest"
	"time"

	"sluice/internal/kernel/ct"
	"sluice/internal/proxy"
)

// TestWriteUnderWay checks the same frontends while a long write is in progress, of which the
// kernel already follows a part. What is right before or after the write is kept until it ends.
func TestWriteUnderWay(t *testing.T) {
	const vip, ext = "10.96.0.10:53", "192.0.2.1:53"
	const pod1, pod2 = "10.1.0.1:53", "10.1.0.2:53"
	tests := []struct {
		name     string
		from, to string // empty: no row
		flows    []ct.Flow
		want     []ct.Flow // while the write is under way
		end      []ct.Flow // after it
	}{
		{
			"endpoint replaced", "cluster=10.96.0.10:53 to=10.1.0.1:53", "cluster=10.96.0.10:53 to=10.1.0.2:53",
			[]ct.Flow{flow(vip, pod1), flow(vip, pod2), flow(vip, "10.1.0.9:53")},
			[]ct.Flow{flow(vip, pod1), flow(vip, pod2)},
			[]ct.Flow{flow(vip, pod2)},
		},
		{
			"frontend added", "cluster=10.96.0.10:53 to=10.1.0.1:53", "cluster=10.96.0.10:53 ext=192.0.2.1:53 to=10.1.0.1:53",
			[]ct.Flow{flow(ext, pod1), flow(ext, ext)},
			[]ct.Flow{flow(ext, pod1), flow(ext, ext)},
			[]ct.Flow{flow(ext, pod1)},
		},
		{
			"frontend removed", "cluster=10.96.0.10:53 ext=192.0.2.1:53 to=10.1.0.1:53", "cluster=10.96.0.10:53 to=10.1.0.1:53",
			[]ct.Flow{flow(ext, pod1), flow(ext, ext)},
			[]ct.Flow{flow(ext, pod1), flow(ext, ext)},
			[]ct.Flow{flow(ext, ext)},
		},
		{
			"Service deleted", "cluster=10.96.0.10:53 ext=192.0.2.1:53 to=10.1.0.1:53", "",
			[]ct.Flow{flow(vip, pod1), flow(ext, ext), flow(vip, "10.1.0.9:53")},
			[]ct.Flow{flow(vip, pod1), flow(ext, ext)},
			[]ct.Flow{flow(ext, ext)},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			run(t, func(b *bench) {
				b.apply([]*proxy.ServicePort{row("dns", "cluster=10.96.0.10:53 ext=192.0.2.1:53 to=10.1.0.7:53")})
				b.apply([]*proxy.ServicePort{row("dns", tt.from)})
				synctest.Wait()
				var step *proxy.Delta
				if tt.to != "" {
					step = b.applying([]*proxy.ServicePort{row("dns", tt.to)})
				} else {
					step = b.applying(nil, b.state.Rows[row("dns", tt.from).Key])
				}
				b.kernel.Add(tt.flows...)
				time.Sleep(2 * watchTime) // The second look is in this time.
				b.wantFlows(tt.want...)
				b.applied(step)
				b.wantFlows(tt.end...)
			})
		})
	}
}

// TestNodeChangeUnderWay checks that a flow to an address that will no longer accept NodePorts is
// kept until the write ends.
func TestNodeChangeUnderWay(t *testing.T) {
	run(t, func(b *bench) {
		b.apply([]*proxy.ServicePort{row("dns", "node=0.0.0.0:30053 to=10.1.0.1:53")})
		synctest.Wait()
		step := &proxy.Delta{Node: nodeWith("192.168.0.0/24")}
		b.rec.Applying(step)
		right := flow("192.168.1.2:30053", "192.168.1.2:30053")
		b.kernel.Add(right, flow("192.168.1.2:30053", "10.1.0.1:53"))
		time.Sleep(2 * watchTime)
		b.wantFlows(right, flow("192.168.1.2:30053", "10.1.0.1:53"))
		b.applied(step)
		b.wantFlows(right)
	})
}

// TestFailedWriteGivenUp reverts what a half-failed write would have created: flows that began in
// between end.
func TestFailedWriteGivenUp(t *testing.T) {
	const before = "cluster=10.96.0.10:53 to=10.1.0.1:53"
	tests := []struct {
		name   string
		failed *proxy.ServicePort
		then   []*proxy.ServicePort
		made   ct.Flow
	}{
		{
			"frontend", row("dns", before+" ext=192.0.2.1:53"),
			[]*proxy.ServicePort{row("dns", before)},
			flow("192.0.2.1:53", "10.1.0.1:53"),
		},
		{"Service", row("web", "cluster=10.96.0.11:53 to=10.1.0.9:53"), nil, flow("10.96.0.11:53", "10.1.0.9:53")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			run(t, func(b *bench) {
				b.settled(row("dns", before))
				b.applying([]*proxy.ServicePort{tt.failed})
				b.kernel.Add(tt.made)
				b.applying(nil) // It fails too, and nothing is forgotten.
				b.apply(tt.then)
				b.wantFlows()
			})
		})
	}
}

// TestFailedWrite checks that everything is checked after a failed write, because it is not known
// what the kernel did meanwhile.
func TestFailedWrite(t *testing.T) {
	run(t, func(b *bench) {
		b.settled(row("dns", "cluster=10.96.0.10:53 to=10.1.0.1:53"))
		b.applying([]*proxy.ServicePort{row("dns", "cluster=10.96.0.10:53 to=10.1.0.2:53")})
		made := flow("10.96.0.10:53", "10.1.0.2:53") // by the half that was written
		b.kernel.Add(made)
		again := b.applying([]*proxy.ServicePort{row("dns", "cluster=10.96.0.10:53 to=10.1.0.1:53")})
		time.Sleep(time.Minute)
		b.applied(again)
		b.wantFlows()
		b.settle()
		b.kernel.Reset()
		time.Sleep(time.Hour)
		if c := b.kernel.Reset(); c.Dumps != 0 {
			t.Errorf("%d dumps with nothing to do", c.Dumps)
		}
	})
}
