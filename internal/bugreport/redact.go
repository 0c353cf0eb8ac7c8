package bugreport

import (
	"bytes"
	"regexp"
)

// redacted replaces a secret.
const redacted = "REDACTED"

// privateKey matches a private key in PEM, the only kind of secret with several lines.
var privateKey = regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)`)

// secretKey matches the names of settings that have a secret value.
const secretKey = `[\w.-]*(?:token|password|passwd|passphrase|secret|(?:api|access|secret|private)[-_]?key|client-key-data|` +
	`client-certificate-data|certificate-authority-data|authorization|credentials?)`

// Quoted values. The closing quote may be missing if a line was cut.
const (
	// escapedText matches a string within a JSON string, without its quotes. One
	// backslash before a quote ends it, because its own escapes begin with two.
	escapedText = `(?:[^"\\\n]|\\\\(?:\\.|[^\\\n]))*`

	quotedText = `(?:"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?|\\"` + escapedText + `(?:\\")?)`
)

// settingHints are lower-case texts, one of which is in every line that has a name
// matching secretKey.
var settingHints = []string{"token", "pass", "secret", "key", "client-cert", "certificate-auth", "authorization", "credential"}

// secrets are the patterns of secrets within a line, and their replacements. They do not
// match names of Services, whatever those are. A pattern is tried only on lines that
// have one of its hints, because most of a report has none.
var secrets = []struct {
	hints   []string
	form    *regexp.Regexp
	instead string
}{
	{[]string{"ls0tls1crudjti"}, regexp.MustCompile(`LS0tLS1CRUdJTi[A-Za-z0-9+/=_-]*`), redacted},                         // a key or certificate in base64
	{[]string{"eyj"}, regexp.MustCompile(`\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*`), redacted},                                     // a token of a ServiceAccount
	{[]string{"://"}, regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s"'@]+@`), "${1}" + redacted + "@"},             // in a URL
	{[]string{"bearer", "basic"}, regexp.MustCompile(`(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{8,}`), "${1}" + redacted},     // in a header
	{settingHints, regexp.MustCompile(`(?i)("` + secretKey + `"\s*:\s*)"(?:[^"\\]|\\.)*"`), `${1}"` + redacted + `"`},     // JSON
	{settingHints, regexp.MustCompile(`(?i)(\\+"` + secretKey + `\\+"\s*:\s*\\+")` + escapedText), "${1}" + redacted},     // JSON in JSON
	{settingHints, regexp.MustCompile(`(?i)('` + secretKey + `'\s*:\s*)` + quotedText), "${1}" + redacted},                // Python
	{settingHints, regexp.MustCompile(`(?i)^([ \t-]*` + secretKey + `:[ \t]+)\S.*`), "${1}" + redacted},                   // YAML
	{settingHints, regexp.MustCompile(`(?i)(--` + secretKey + `[=\s]\s*)(?:"[^"]*"|[^\s-]\S*)`), "${1}" + redacted},       // a flag
	{settingHints, regexp.MustCompile(`(?i)(\b` + secretKey + `=)(?:` + quotedText + `|[^\s&"',}]+)`), "${1}" + redacted}, // a query, a log
}

// redact replaces the secrets in text.
func redact(text []byte) []byte {
	if bytes.Contains(text, []byte("PRIVATE KEY-----")) {
		text = privateKey.ReplaceAll(text, []byte(redacted))
	}
	out := make([]byte, 0, len(text))
	for line := range bytes.Lines(text) {
		lower := bytes.ToLower(line)
		for _, s := range secrets {
			if contains(lower, s.hints) {
				line = s.form.ReplaceAll(line, []byte(s.instead))
			}
		}
		out = append(out, line...)
	}
	return out
}

func contains(line []byte, hints []string) bool {
	for _, h := range hints {
		if bytes.Contains(line, []byte(h)) {
			return true
		}
	}
	return false
}
