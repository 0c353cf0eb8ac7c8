package explain

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"sluice/internal/statusapi"
	"sluice/test/daemon/testbed"
)

// TestStatusTellsWhatIsInForce reads the status while the daemon serves, while objects change, and
// after it was killed.
func TestStatusTellsWhatIsInForce(t *testing.T) {
	bed := testbed.New(t)
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	bed.Write("idle.yaml", testbed.Service("idle", testbed.SecondIP))
	if text, code := bed.Sluice("status"); code != 2 || !strings.Contains(text, "is sluice running on this node?") {
		t.Errorf("without a daemon: exit %d, %s", code, text)
	}
	d := bed.Start(nil)
	text, code := bed.Sluice("status", "--wait=20s")
	if code != 0 || !strings.Contains(text, "All in force") || !strings.Contains(text, "NoEndpoints") {
		t.Fatalf("exit %d, %s", code, text)
	}
	if !bed.Answers(testbed.ClusterIP, testbed.PodA)() {
		t.Error("in force, it is said, and the Service does not answer")
	}
	if text, code := bed.Sluice("status", "--problems"); code != 1 || strings.Contains(text, "web") || !strings.Contains(text, "idle") {
		t.Errorf("--problems: exit %d, %s", code, text)
	}
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodB))
	testbed.Eventually(t, "the change in the status", func() bool {
		text, _ := bed.Sluice("status", "default/web")
		return strings.Contains(text, testbed.PodB.String()) && !strings.Contains(text, testbed.PodA.String())
	})
	if code := d.End(syscall.SIGKILL); code != -1 {
		t.Errorf("exit %d", code)
	}
	if text, code := bed.Sluice("status"); code != 2 || !strings.Contains(text, "has stopped or was killed") {
		t.Errorf("after it was killed: exit %d, %s", code, text)
	}
	bed.Start(nil)
	if text, code := bed.Sluice("status", "--wait=20s", "-o", "name"); code != 0 || text != "default/idle\ndefault/web\n" {
		t.Errorf("after a restart: exit %d, %s", code, text)
	}
}

// TestStatusDoubtsChangedRules deletes the rules whenever they were repaired, so that repairs
// are delayed. While a table is missing, status, --wait and the metrics say so.
func TestStatusDoubtsChangedRules(t *testing.T) {
	bed := testbed.New(t)
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	bed.Start(nil, "--metrics-bind-address", "127.0.0.1:10249")
	bed.AwaitSync()
	missing := func() bool { _, code := bed.Call("nft", "list", "table", "ip", "sluice"); return code != 0 }
	var metrics, waited, text string
	var exit int
	testbed.Eventually(t, "a repair that waits for longer than three questions take", func() bool {
		testbed.Eventually(t, "the repair", func() bool { return !missing() })
		bed.Run("nft", "delete", "table", "ip", "sluice")
		testbed.Eventually(t, "the doubt, or the repair", func() bool {
			text, _ = bed.Sluice("status")
			return strings.Contains(text, "RulesChanged") || !missing()
		})
		_, metrics, _ = bed.Get("http://127.0.0.1:10249/metrics")
		waited, exit = bed.Sluice("status", "--wait=0s")
		return missing() // else the next repair waits for twice as long
	})
	if !strings.Contains(metrics, `sluice_doubts{kind="RulesChanged"} 1`) {
		t.Error("the metrics have no doubt")
	}
	const doubt = "another process changed our rules: rule deleted in chain services of table ip sluice by nft, process "
	if exit != 1 || !strings.Contains(waited, "not everything is in force: IN DOUBT: "+doubt) || !strings.Contains(text, "\nIN DOUBT: "+doubt) ||
		!strings.Contains(text, "Next: they are compared and repaired, in ") {
		t.Errorf("--wait: exit %d, %s; status:\n%s", exit, waited, text)
	}
	testbed.Eventually(t, "the repair", func() bool { _, exit := bed.Sluice("status", "--wait=0s"); return exit == 0 })
	if missing() {
		t.Error("in force, it is said, and the table is missing")
	}
}

// TestStatusDoesNotHoldUpChanges reads the whole status continuously and concurrently while an
// endpoint is replaced: the change still takes effect at once.
func TestStatusDoesNotHoldUpChanges(t *testing.T) {
	bed := testbed.New(t)
	var many strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&many, "apiVersion: v1\nkind: Service\nmetadata: {name: many-%04d}\nspec: {clusterIP: 10.97.%d.%d, ports: [{port: 80}]}\n---\n", i, i>>8, i&255)
	}
	bed.Write("many.yaml", many.String())
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	bed.Start(nil)
	if text, code := bed.Sluice("status", "--wait=20s", "--problems"); code != 1 {
		t.Fatalf("exit %d, %s", code, text)
	}
	ctx, stop := context.WithCancel(t.Context())
	asked := make(chan int)
	for _, path := range []string{
		"/v1/services?limit=500&sort=-used", "/v1/services?filter=many-29&sort=name", "/v1/node", "/v1/changes?limit=500",
		"/v1/explain?to=default/web", "/v1/explain?to=172.31.0.1:80",
	} {
		go func() {
			n, c := 0, statusapi.AtSocket(bed.Socket)
			path, query, _ := strings.Cut(path, "?")
			for ; ctx.Err() == nil; n++ {
				var answer any
				if err := c.Get(ctx, path, values(query), &answer); err != nil && ctx.Err() == nil {
					t.Error(err)
					break
				}
			}
			c.CloseIdle()
			asked <- n
		}()
	}
	for _, pod := range []netip.Addr{testbed.PodB, testbed.PodA, testbed.PodB} {
		bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, pod))
		testbed.Eventually(t, "the change", bed.Answers(testbed.ClusterIP, pod))
	}
	var last statusapi.ChangeList
	if err := statusapi.AtSocket(bed.Socket).Get(ctx, statusapi.ChangesPath, values("limit=3"), &last); err != nil {
		t.Error(err)
	}
	for _, c := range last.Items {
		t.Logf("%s of %s took %.1f ms", c.What, c.ServicePort, c.Seconds*1000)
		if c.Seconds > 1 {
			t.Errorf("a change took %v s while the status was asked for", c.Seconds)
		}
	}
	stop()
	for range 6 {
		if n := <-asked; n == 0 {
			t.Error("a question was never answered")
		}
	}
}

func values(query string) url.Values {
	v, _ := url.ParseQuery(query)
	return v
}

// TestStatusTellsOfFiles checks that an unreadable file is reported as a problem until it is fixed.
func TestStatusTellsOfFiles(t *testing.T) {
	bed := testbed.New(t)
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	bed.Write("bad.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {clusterIP: nonsense, ports: [{port: 80}]}\n")
	bed.Start(nil)
	text, code := bed.Sluice("status", "--wait=20s", "--problems")
	if code != 1 || !strings.Contains(text, "1 PROBLEM:") || !strings.Contains(text, "bad.yaml") || !strings.Contains(text, "spec.clusterIP") {
		t.Errorf("exit %d, %s", code, text)
	}
	bed.Write("bad.yaml", "")
	testbed.Eventually(t, "no problem", func() bool {
		_, code := bed.Sluice("status", "--problems")
		return code == 0
	})
}
