package render

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"sluice/test/cluster/peers/figures"
)

// What stands before and after the headline in a page of somebody else's.
const (
	headlineBegin = "<!-- begin: written by make bench-peers -->\n"
	headlineEnd   = "<!-- end: written by make bench-peers -->\n"
)

// Headline writes the verdicts into a page that has a place for them.
func Headline(r *figures.Report, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("write the headline: %w", err)
	}
	page, err := withHeadline(string(text), r)
	if err != nil {
		return fmt.Errorf("write the headline into %s: %w", path, err)
	}
	if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
		return fmt.Errorf("write the headline: %w", err)
	}
	return nil
}

func withHeadline(text string, r *figures.Report) (string, error) {
	before, rest, begins := strings.Cut(text, headlineBegin)
	_, after, ends := strings.Cut(rest, headlineEnd)
	if !begins || !ends {
		return "", errors.New("there is no place for it")
	}
	var p page
	p.verdicts(r)
	return before + headlineBegin + p.b.String() + headlineEnd + after, nil
}
