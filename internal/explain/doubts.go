package explain

import (
	"slices"
	"time"

	"sluice/internal/engine"
	"sluice/internal/statusapi"
)

// WallTime returns t as the wall clock shows it now: the clock may have been set
// since t was taken. Both times must have monotonic clock readings.
func WallTime(t, now time.Time) time.Time { return now.Add(-now.Sub(t)) }

// DoubtsOf returns the API's form of doubts.
func DoubtsOf(all []engine.Doubt, now time.Time) (out []statusapi.Doubt) {
	for _, d := range all {
		one := statusapi.Doubt{
			Kind: string(d.Kind), Severity: statusapi.DoubtWarning, Object: d.Object, Reason: d.Reason, Since: WallTime(d.Since, now), Next: d.Next,
		}
		if d.Kind.Severe() {
			one.Severity = statusapi.DoubtError
		}
		if !d.NextAt.IsZero() {
			one.NextAt = new(WallTime(d.NextAt, now))
		}
		out = append(out, one)
	}
	return out
}

// doubts returns the doubts that may concern any packet. Refused service ports do not:
// one that the packet is for is the reason.
func (w *World) doubts() []statusapi.Doubt {
	if w.View == nil {
		return nil
	}
	return DoubtsOf(slices.DeleteFunc(w.View.Doubts(), func(d engine.Doubt) bool { return d.Kind == engine.ServicePortsRefused }), time.Now())
}

// unknownVerdict is the verdict while it is not known which rules the kernel has.
const unknownVerdict = "unknown"

// synced reports whether the rules in force are known. Without a daemon, the question
// is what they would be.
func (w *World) synced() bool { return w.View == nil || w.View.Sync.First }

// withoutService answers a question about a Service that is not known, before the first
// sync: it may exist, and rules of an earlier run may serve it.
func (w *World) withoutService(t target) *Answer {
	e := &statusapi.Explanation{
		Packet:  statusapi.ExplainedPacket{Protocol: t.proto.String()},
		Service: &statusapi.ExplainedPort{Namespace: t.service.Namespace, Name: t.service.Name},
		Verdict: unknownVerdict,
		Reason:  statusapi.NotSynced,
		Message: w.notSynced(),
		Kernel:  statusapi.KernelCheck{State: statusapi.KernelNotChecked, Why: "it is not known what the kernel should have"},
		Doubts:  w.doubts(),
		Try:     trySync(),
	}
	return &Answer{Explanation: e}
}

// notSynced says what is known before the first sync.
func (w *World) notSynced() string {
	text := "The daemon has not finished its first sync. If an earlier run left rules, they forward as before; which they are is not known."
	if waiting := w.View.Sync.Waiting; waiting != "" {
		text += " It waits: " + waiting + "."
	}
	return text
}
