package cli

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode"

	"sluice/internal/statusapi"
)

// answering is a daemon that has the same response to every request.
type answering string

func (a answering) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{statusapi.VersionHeader: {statusapi.Version}}, Body: io.NopCloser(strings.NewReader(string(a))),
	}, nil
}

// FuzzAnswer prints the responses of a node that an attacker controls: no control
// character reaches the terminal, and the program ends.
func FuzzAnswer(f *testing.F) {
	for _, text := range []string{
		`{"name":"node-1","mode":"nftables","families":["IPv4"],"now":"2026-01-01T00:00:00Z","counts":{"services":3},"tracking":{"entries":9,"limit":1}}`,
		`{"items":[{"namespace":"ns","name":"web","address":"10.0.0.1","ports":["80/TCP"],"used":1,"endpoints":2,"state":"InForce"}],"total":1}`,
		`{"items":[{"namespace":"\u001b[2J","name":"\u009b31m","state":"Refused","reason":"a\nb\u202e"}],"continue":"1","total":-1}`,
		`{"items":[{"object":"Service ns/web","field":"spec","reason":"\u001b]0;x\u0007"}]}`,
		`{"packet":{"to":"1.2.3.4:80"},"verdict":"forward","reason":"Forwarded","candidates":[{"address":"x","share":1e308}],"candidateCount":99,` +
			`"affinity":{"seconds":1e300},"notes":["\u001b"],"kernel":{"state":"Differs"},"flows":{"total":-5}}`,
		`{"counted":"0001-01-01T00:00:00Z","items":[{"namespace":"a","name":"b","connections":18446744073709551615,"endpoint":"e"}]}`,
		`null`, `[]`, `{"tracking":{"limit":-1,"entries":-9223372036854775808}}`, `{"sync":{"seconds":-1e308}}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		c := statusapi.At(&http.Client{Transport: answering(answer)}, "http://node", "the daemon")
		var b strings.Builder
		say := func(err error) {
			if err != nil {
				b.WriteString((&ExitError{Err: err}).Error() + "\n") // as main does
			}
		}
		for _, o := range []StatusOptions{
			{}, {Output: "wide", All: true}, {Output: "json"}, {Output: "yaml"}, {Problems: true}, {Services: []string{"a/b"}}, {Services: []string{"a/b"}, Output: "wide"},
		} {
			_, err := Status(t.Context(), &b, c, o)
			say(err)
		}
		for _, endpoints := range []bool{false, true} {
			o := TopOptions{SortBy: "total", Endpoints: endpoints}
			s, err := read(t.Context(), TrafficOf(c), o)
			later := s
			later.at = s.at.Add(time.Second)
			b.WriteString(topText(s, later, o, screen{}))
			b.WriteString(topText(s, later, o, screen{columns: 40, lines: 10}))
			say(err)
		}
		var e statusapi.Explanation
		if err := c.Get(t.Context(), statusapi.ExplainPath, nil, &e); err == nil {
			for _, format := range ExplainFormats {
				say(Explain(&b, format, &e, time.Now()))
			}
		}
		for line := range strings.Lines(b.String()) {
			if at := strings.IndexFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return !unicode.IsPrint(r) && r != '\t' }); at >= 0 {
				t.Errorf("%q at %d", line, at)
			}
		}
	})
}
