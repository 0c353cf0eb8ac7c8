// Package render writes figures for people: a Markdown page and pictures. It
// computes nothing that the figures do not say themselves.
package render

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/template"

	"sluice/test/cluster/peers/figures"
)

//go:embed page.md.tmpl
var pageTemplate string

// Write writes the page and the pictures of a report beside its JSON file,
// which is written too.
func Write(r *figures.Report, path string) error {
	if err := r.Write(path); err != nil {
		return err
	}
	stem := strings.TrimSuffix(path, ".json")
	page, err := Markdown(r)
	if err == nil {
		err = os.WriteFile(stem+".md", []byte(page), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return draw(r, stem)
}

// Markdown returns the report as a page.
func Markdown(r *figures.Report) (string, error) { return execute(r, "page") }

// execute writes the page or a part of it.
func execute(r *figures.Report, part string) (string, error) {
	t, err := template.New("page").Funcs(template.FuncMap{
		"results":  func() []*figures.Result { return results(r) },
		"rates":    func() []int { return rates(r) },
		"pictures": func() []picture { return pictures },
		"change":   figures.StageChange,
		"why":      func(x *figures.Result, s figures.Stage) string { return cell(x.Why(s)) },
		"cell":     cell,
		"gib":      func(b figures.Bytes) string { return fmt.Sprintf("%.0f", float64(b)/(1<<30)) },
		"gigabits": func(bytes float64) string { return fmt.Sprintf("%.1f", bytes*8/1e9) },
	}).Parse(pageTemplate)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.ExecuteTemplate(&b, part, r)
	return b.String(), err
}

// cell is free text that may stand in a table.
func cell(text any) string { return strings.ReplaceAll(fmt.Sprint(text), "|", `\|`) }

// results are all of them, by size and then by peer.
func results(r *figures.Report) (out []*figures.Result) {
	for _, s := range r.Sizes() {
		for _, peer := range r.Peers() {
			if x := r.Result(peer, s); x != nil {
				out = append(out, x)
			}
		}
	}
	return out
}

// rates are those of other changes that there are figures of.
func rates(r *figures.Report) []int {
	seen := map[int]bool{}
	for _, x := range r.Results {
		for _, c := range x.Changes {
			seen[c.Rate] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// What stands before and after the promises in another page.
const (
	promisesBegin = "<!-- begin: written by make bench-peers -->\n"
	promisesEnd   = "<!-- end: written by make bench-peers -->\n"
)

// WritePromises writes the table of promises into a page that has a place for it.
func WritePromises(r *figures.Report, path string) error {
	text, err := os.ReadFile(path)
	page := ""
	if err == nil {
		page, err = withPromises(string(text), r)
	}
	if err == nil {
		err = os.WriteFile(path, []byte(page), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the promises into %s: %w", path, err)
	}
	return nil
}

func withPromises(text string, r *figures.Report) (string, error) {
	before, rest, begins := strings.Cut(text, promisesBegin)
	_, after, ends := strings.Cut(rest, promisesEnd)
	if !begins || !ends {
		return "", errors.New("there is no place for them: its marks are missing")
	}
	table, err := execute(r, "promises")
	return before + promisesBegin + table + promisesEnd + after, err
}
