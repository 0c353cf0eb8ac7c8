package reliability

import (
	"fmt"
	"reflect"
	"testing"
	"time"
)

// keeper keeps what a test says, as go test -v prints it.
type keeper struct {
	testing.TB
	output string
}

func (k *keeper) Log(args ...any) {
	k.output += "=== RUN   TestKills/nftables\n    kill_test.go:54: " + fmt.Sprint(args...) + "\n--- PASS: TestKills/nftables (1.00s)\n"
}

// TestWhatIsRecordedIsRead: nothing gets lost on the way through a test's output.
func TestWhatIsRecordedIsRead(t *testing.T) {
	k := &keeper{TB: t}
	want := []Result{
		{Fault: "daemon killed (SIGKILL)", Mode: "nftables", Tried: 25, Requests: 8650, Repairs: []time.Duration{time.Second, time.Millisecond}},
		{Fault: "half a \"batch\" | taken", Mode: "ipvs", Tried: 1, Requests: 2, Failed: 1, Misdirected: 1, Note: "why\nnot"},
	}
	for i := range want {
		Record(k, want[i])
		want[i].Kernel = kernel(t)
	}
	got, err := Read("reliability: not of a test\n" + k.output)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, error %v; want %+v", got, err, want)
	}
	if want[0].Kernel == "" {
		t.Error("the kernel is not told")
	}
	if _, err := Read("    a_test.go:1: reliability: {\n"); err == nil {
		t.Error("half a result was believed")
	}
}
