package windows

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestService has Wine's service control manager start and stop it.
func TestService(t *testing.T) {
	n := newNode(t)
	n.giveServices("SLUICE_TEST_HNS")
	n.stayUp()
	n.write("web", local, remote)
	n.sc("create", "sluice", "binPath=", drive(n.exe)+" --windows-service "+strings.Join(n.flags(), " "))
	n.sc("start", "sluice")
	n.wait(n.query, local, remote)
	n.eventually("the service is healthy", n.query, n.healthy)
	n.write("web", other)
	n.wait(n.query, other)

	n.sc("stop", "sluice")
	n.eventually("the service has stopped, and not failed", n.query, func() bool {
		now := n.query()
		return strings.Contains(now, "STOPPED") && strings.Contains(now, "WIN32_EXIT_CODE    : 0 ")
	})
	if !n.serves(other) {
		t.Errorf("after the end HNS has %q", n.balancers())
	}
}

// TestServiceFails wants what is wrong to be an exit code of the service, by which
// it can be started again.
func TestServiceFails(t *testing.T) {
	n := newNode(t)
	n.stayUp()
	n.sc("create", "sluice", "binPath=", drive(n.exe)+" --windows-service --source-vip=x")
	n.sc("start", "sluice")
	n.eventually("the service has failed", n.query, func() bool {
		now := n.query()
		return strings.Contains(now, "STOPPED") && strings.Contains(now, "SERVICE_EXIT_CODE  : 1 ")
	})
}

// stayUp keeps a program running: Wine ends with the last one, and services are none
// to it.
func (n *node) stayUp() {
	n.t.Helper()
	cmd := n.windows.Command(n.t.Context(), "cmd")
	input, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = input.Close()
		_ = cmd.Wait() // which was interrupted by the end of the test
	})
}

// sc runs the program that administers services.
func (n *node) sc(args ...string) string {
	n.t.Helper()
	out, code := n.output(n.windows.Command(n.t.Context(), "sc", args...))
	if code != 0 {
		n.t.Fatalf("sc %v: exit code %d\n%s", args, code, out)
	}
	return out
}

func (n *node) query() string { return n.sc("query", "sluice") }

// giveServices sets a variable of this node's programs for services, too. They have
// those that the registry had when Wine started.
func (n *node) giveServices(name string) {
	n.t.Helper()
	env := map[string]string{}
	for _, v := range n.windows.Command(n.t.Context(), "").Env {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
	}
	file, err := os.OpenFile(filepath.Join(env["WINEPREFIX"], "system.reg"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		n.t.Fatal(err)
	}
	const key = `System\\CurrentControlSet\\Control\\Session Manager\\Environment`
	if _, err := fmt.Fprintf(file, "\n[%s] 1\n%q=%q\n", key, name, env[name]); err != nil {
		n.t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		n.t.Fatal(err)
	}
}
