package explain

import "testing"

// FuzzQuestion checks that any question gets an answer, or an error that says what
// is wrong with it.
func FuzzQuestion(f *testing.F) {
	for _, to := range []string{
		"10.96.0.1:80", "[fd00::1]:80", "ns/web", "ns/web:http", "ns/dns:53", "ns/db", "ns/unborn", "/", "a/b/c", ":", "1.2.3.4:0", "ns/web:", "[::ffff:10.96.0.1]:80",
		"fe80::1%eth0", "[fe80::1%eth0]:1", "127.0.0.1:30080", "ns/\n", "10.96.0.53:99999",
	} {
		f.Add(to, "", "", "")
		f.Add(to, "10.1.0.7", "udp", "eth0")
		f.Add(to, to, to, to)
	}
	var w *World
	f.Fuzz(func(t *testing.T, to, from, protocol, in string) {
		if w == nil {
			w = worldOf(t)
		}
		a, err := w.Explain(Question{To: to, From: from, Protocol: protocol, In: in})
		switch {
		case err != nil && err.Error() == "":
			t.Error("the error is empty")
		case err == nil && (a.Verdict == "" || a.Reason == "" || a.Message == ""):
			t.Errorf("%+v", a.Explanation)
		}
	})
}
