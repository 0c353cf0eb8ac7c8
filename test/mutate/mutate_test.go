package main

import (
	"strings"
	"testing"
)

// TestMutationsApply checks that every mutation can be made in this tree, each once.
func TestMutationsApply(t *testing.T) {
	if err := check("../..", mutations()); err != nil {
		t.Error(err)
	}
	names := map[string]bool{}
	for _, m := range mutations() {
		if names[m.name] {
			t.Errorf("two mutations are named %s", m.name)
		}
		names[m.name] = true
	}
}

// TestRead checks what counts as noticed.
func TestRead(t *testing.T) {
	for _, c := range []struct{ name, out, want string }{
		{"pass", `{"Action":"pass","Package":"p","Test":"TestA"}` + "\n" + `{"Action":"pass","Package":"p"}`, "SURVIVED"},
		{"a test fails", `{"Action":"run","Test":"TestA/b"}
{"Action":"fail","Test":"TestA/b"}
{"Action":"fail","Test":"TestA"}
{"Action":"fail"}`, "p: TestA/b"},
		{"the process ends", `{"Action":"run","Test":"TestA"}
{"Action":"output","Output":"panic"}
{"Action":"fail"}`, "p: TestA"},
		{"it does not compile", `{"Action":"build-output","Output":"undefined: x"}
{"Action":"build-fail"}
{"Action":"fail","FailedBuild":"p [p.test]"}`, "INVALID: the mutation does not compile"},
		{"no output", "", "SURVIVED"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := read("internal/p", strings.NewReader(c.out))
			if got := r.String(); got != c.want {
				t.Errorf("got %q; want %q", got, c.want)
			}
			if caught := strings.HasPrefix(c.want, "p: "); r.caught() != caught {
				t.Errorf("caught is %t; want %t", r.caught(), caught)
			}
		})
	}
}
