package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"

	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"
)

// Clean makes text safe for a terminal. Text that comes from objects or from other
// hosts may contain control characters, which a terminal obeys; Clean replaces what is
// not printable.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return '\ufffd'
		}
		return r
	}, s)
}

// age returns how long ago a time was, formatted as kubectl does.
func age(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration.HumanDuration(max(0, now.Sub(t)))
}

// seconds formats a duration with a precision that depends on its length.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	default:
		return d.Round(time.Microsecond).String()
	}
}

// thousands formats a number as 1,234,567.
func thousands[N int | uint64](n N) string {
	digits := fmt.Sprint(n)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 && digits[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return thousands(n) + " " + many
}

// writeAll passes a buffer to write and then writes it to w at once, so that write
// need not check the errors of w.
func writeAll(w io.Writer, write func(w io.Writer) error) error {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	_, err := b.WriteTo(w)
	return err
}

// encode writes an object as JSON or YAML. Characters that are not printable are
// escaped in JSON, and replaced in YAML.
func encode(w io.Writer, format string, object any) error {
	text, err := json.MarshalIndent(object, "", "  ")
	if err != nil {
		return err
	}
	write := escape
	if format == "yaml" { // YAML has no escapes outside of double quotes.
		write = func(r rune) string { return "\ufffd" }
		if text, err = yaml.JSONToYAML(text); err != nil {
			return err
		}
	}
	var b strings.Builder
	for _, r := range strings.TrimRight(string(text), "\n") {
		if unicode.IsPrint(r) || r == '\n' {
			b.WriteRune(r)
		} else {
			b.WriteString(write(r))
		}
	}
	_, err = fmt.Fprintln(w, b.String())
	return err
}

// escape returns the JSON escape of a character. Characters that are not printable
// occur only within strings, where an escape is valid.
func escape(r rune) (out string) {
	for _, u := range utf16.Encode([]rune{r}) {
		out += fmt.Sprintf(`\u%04x`, u)
	}
	return out
}
