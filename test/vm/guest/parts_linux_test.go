package guest

import (
	"slices"
	"strings"
	"testing"
)

func TestMirrorIsFoundInBothFormats(t *testing.T) {
	for text, want := range map[string]string{
		"deb http://a.example/debian bookworm main\n":                                                      "http://a.example/debian",
		"# deb http://b.example/debian bookworm main\ndeb [arch=amd64] https://a.example/debian/ sid main": "https://a.example/debian",
		"Types: deb\n# http://b.example/debian\nURIs: http://a.example/debian\nSuites: bookworm\n":         "http://a.example/debian",
		"deb http://a.example/debian-security bookworm-security main\n":                                    "",
		"deb https://a.example/apt stable main\n":                                                          "",
	} {
		got := ""
		if m := debianURI.FindStringSubmatch(text); m != nil {
			got = m[1]
		}
		if got != want {
			t.Errorf("got %q, want %q, in:\n%s", got, want, text)
		}
	}
}

func TestTheNewestKernelIsTaken(t *testing.T) {
	names := []string{"linux-image-6.12.9+deb12-cloud-amd64", "linux-image-6.12.115+deb12-cloud-amd64", "linux-image-6.12.99+deb12-cloud-amd64"}
	if got := slices.MaxFunc(names, byVersion); got != names[1] {
		t.Errorf("got %s, want %s", got, names[1])
	}
}

func TestTheConsoleIsPassedOnFromTheStart(t *testing.T) {
	var out strings.Builder
	c := &console{out: &out}
	for _, part := range []string{"Oops\nguest: L", "inux 6.1\n", "hello\n"} {
		if n, err := c.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatalf("took %d of %q, %v", n, part, err)
		}
	}
	if want := "guest: Linux 6.1\nhello\n"; out.String() != want {
		t.Errorf("passed on %q, want %q", out.String(), want)
	}
	if want := "Oops\n" + out.String(); string(c.tail) != want {
		t.Errorf("remembers %q, want %q", c.tail, want)
	}
}
