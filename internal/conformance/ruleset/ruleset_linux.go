package ruleset

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"

	"sluice/internal/conformance/lab"
)

// sections are the commands whose output makes up a dump.
var sections = []struct {
	command string
	tidy    func(string) string
}{
	{"nft -s list ruleset", normalizeNft},
	{"iptables-nft-save", normalizeSave},
	{"ip6tables-nft-save", normalizeSave},
	{"iptables-legacy-save", normalizeSave},
	{"ip6tables-legacy-save", normalizeSave},
	{"ipset save", strings.Clone},
	{"ip -brief address show", strings.Clone},
	{"ip -brief link show", strings.Clone},
}

// Of returns the dump of a host. It omits counters, and what any use of iptables creates and no
// program can remove again: built-in chains without rules that accept everything, and iptables
// tables without anything else.
func Of(h *lab.Host) (string, error) {
	var text strings.Builder
	err := h.Do(func() error {
		for _, s := range sections {
			words := strings.Fields(s.command)
			out, err := exec.Command(words[0], words[1:]...).Output()
			if failed, ok := errors.AsType[*exec.ExitError](err); ok {
				err = fmt.Errorf("%w: %s", err, failed.Stderr)
			}
			if err != nil {
				return fmt.Errorf("run %s in %s: %w", s.command, h.Name, err)
			}
			fmt.Fprintf(&text, "# %s\n%s\n", s.command, s.tidy(string(out)))
		}
		return nil
	})
	return text.String(), err
}

// normalizeNft removes the empty tables of iptables from the output of nft list ruleset.
func normalizeNft(list string) string {
	var kept strings.Builder
	for _, table := range strings.SplitAfter(list, "\n}\n") {
		table = regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(table, "")
		if ofIPTables := regexp.MustCompile(`^table ip6? (filter|nat|mangle|raw|security) {\n`); ofIPTables.MatchString(table) {
			table = regexp.MustCompile(`\tchain [A-Z]+ {\n\t\ttype .*; policy accept;\n\t}\n\n?`).ReplaceAllString(table, "")
			table = strings.Replace(table, "\t}\n\n}", "\t}\n}", 1)
			if ofIPTables.ReplaceAllString(table, "") == "}\n" {
				continue
			}
		}
		kept.WriteString(table)
	}
	return kept.String()
}

// normalizeSave removes empty built-in chains and empty tables from the output of iptables-save.
func normalizeSave(saved string) string {
	saved = regexp.MustCompile(`(?m)^#.*\n| \[\d+:\d+\]`).ReplaceAllString(saved, "")
	var kept strings.Builder
	for _, table := range strings.SplitAfter(saved, "COMMIT\n") {
		var text strings.Builder
		for line := range strings.Lines(table) {
			chain, accepts := strings.CutSuffix(line, " ACCEPT\n")
			if accepts && chain[0] == ':' && !strings.Contains(table, "\n-A "+chain[1:]+" ") {
				continue
			}
			text.WriteString(line)
		}
		if strings.Count(text.String(), "\n") > 2 { // every table has a first and a last line
			kept.WriteString(text.String())
		}
	}
	return kept.String()
}
