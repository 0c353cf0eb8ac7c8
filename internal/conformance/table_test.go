package conformance

import (
	"strings"
	"testing"
)

// TestMistakesInTheTableAreErrors checks that mistakes are rejected: a misspelt case would prove
// nothing.
func TestMistakesInTheTableAreErrors(t *testing.T) {
	const group = `groups: [{id: g, services: [], slices: [], cases: [%]}]`
	for _, tc := range []struct{ name, text, want string }{
		{"unknown field", `{id: a, from: pod, dst: 1.2.3.4, dport: 80, expekt: drop}`, "expekt"},
		{"unknown verdict", `{id: a, from: pod, dst: 1.2.3.4, dport: 80, expect: dropped}`, "dropped"},
		{"unknown protocol", `{id: a, from: pod, dst: 1.2.3.4, dport: 80, proto: ICMP, expect: drop}`, "ICMP"},
		{"no masquerading said", `{id: a, from: pod, dst: 1.2.3.4, dport: 80, expect: {to: ["10.0.0.1:80"]}}`, "masq"},
		{"masquerading said twice", `{id: a, from: pod, dst: 1.2.3.4, dport: 80, expect: {to: ["10.0.0.1:80"], masq: true, masq_when_to_is: {"10.0.0.1:80": true}}}`, "masq"},
		{"unknown word in expect", `{id: a, from: pod, dst: 1.2.3.4, dport: 80, expect: {to: ["10.0.0.1:80"], masc: true}}`, "masc"},
		{"no destination", `{id: a, from: pod, dport: 80, expect: drop}`, "dst"},
		{"no client", `{id: a, from: pot, dst: 1.2.3.4, dport: 80, expect: drop}`, "pot"},
		{"unknown phase", `{id: a, phase: later, from: pod, dst: 1.2.3.4, dport: 80, expect: drop}`, "later"},
		{"one id twice", `{id: a, from: pod, dst: 1.2.3.4, dport: 80, expect: drop}, {id: a, from: pod, dst: 1.2.3.4, dport: 80, expect: drop}`, "twice"},
		{"no cases", ``, "no cases"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parse([]byte(strings.Replace(group, "%", tc.text, 1)))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want one about %q", err, tc.want)
			}
		})
	}
}

// TestMistakesInStoriesAreErrors does the same for steps.
func TestMistakesInStoriesAreErrors(t *testing.T) {
	for _, step := range []string{
		`{do: conect}`,
		`{do: connect, from: pod, dst: 1.2.3.4, dport: 80, assert: [one_backed]}`,
		`{do: connect, from: pod, dst: 1.2.3.4, dport: 80, assert: [same_as]}`,
		`{do: connect, from: pod, dst: 1.2.3.4, dport: 80, assert: [even b]}`,
		`{do: connect, dst: 1.2.3.4, dport: 80}`,
	} {
		if _, err := parse([]byte(`stateful: [{id: s, steps: [` + step + `]}]`)); err == nil {
			t.Errorf("%s was accepted", step)
		}
	}
}
