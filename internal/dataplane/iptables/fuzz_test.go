package iptables

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// FuzzNames checks that names, which tenants choose, affect only comments in the input of
// iptables-restore: whatever they are, the rules are those of any other name.
func FuzzNames(f *testing.F) {
	for _, name := range []string{
		"web", "", `"`, `\`, "\nCOMMIT\n*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -j ACCEPT\n", `" -j ACCEPT -m comment --comment "`,
		"\x00", "\xff\xfe", "'", "$(reboot)", "%s%n", "\u202e", strings.Repeat("a", 300), "\r\n-F", "#", " ", "`id`", "\t-X",
	} {
		f.Add(name, "web", "http")
		f.Add("ns", name, "http")
		f.Add("ns", "web", name)
	}
	want := commands(f, "ns", "web", "http")
	f.Fuzz(func(t *testing.T, namespace, name, port string) {
		got := commands(t, namespace, name, port)
		for i := range min(len(want), len(got)) {
			if got[i] != want[i] {
				t.Fatalf("line %d is %q; want %q", i, got[i], want[i])
			}
		}
		if len(got) != len(want) {
			t.Errorf("%d lines; want %d", len(got), len(want))
		}
	})
}

var (
	commentText = regexp.MustCompile(`--comment "[ -~]*?"`)
	chainHash   = regexp.MustCompile(`(KUBE-[A-Z]+)-[A-Z2-7]{16}\b`)
)

// commands returns the input of iptables-restore for Services of every kind, without the text
// of comments and the hashes of names.
func commands(t testing.TB, namespace, name, port string) (out []string) {
	t.Helper()
	s := proxy.NewState()
	s.Node = testNode()
	for i, sp := range []*proxy.ServicePort{everyRow(), plainRow(7, 0, 0)} {
		sp.Key.Namespace, sp.Key.Name, sp.Key.Port = namespace, name+strings.Repeat("-", i), port
		s.Rows[sp.Key] = sp
	}
	check := proxy.HealthCheckKey{Namespace: namespace, Name: name}
	s.HealthChecks = map[proxy.HealthCheckKey]*proxy.HealthCheck{check: {Key: check, Port: 30000}}
	d, fake := faked()
	told := &recorder{Interface: fake}
	d.families[0].programs = told
	proxytest.MustSync(t, d, s)
	for _, input := range told.inputs {
		for line := range strings.Lines(input) {
			line = commentText.ReplaceAllString(strings.TrimSuffix(line, "\n"), "--comment X")
			line = chainHash.ReplaceAllString(line, "$1-HASH")
			out = append(out, line)
		}
	}
	slices.Sort(out) // Rows come in the order of their names.
	if len(out) < 20 {
		t.Fatalf("only %d lines", len(out))
	}
	return out
}
