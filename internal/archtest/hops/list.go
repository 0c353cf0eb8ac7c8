package hops

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Limits of the number of hops: lines of the list, and functions in the table. A mode that stands
// on the rules of nftables has a way of its own, and then that of the rules.
const (
	maxHops      = 8
	maxHopsRules = 11
)

var (
	numbered = regexp.MustCompile(`(?m)^\d+\. (.*)$`)
	ofMode   = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (.*) \\|$")
	function = regexp.MustCompile("`(\\w+(?:\\.\\w+)+)`")
)

// Lists returns the functions that an event passes in each mode, in order, from the text of
// ARCHITECTURE.md: those of the numbered list, whose one line without a function stands for the
// mode's line in the table.
func Lists(architecture string) (map[string][]string, error) {
	_, section, _ := strings.Cut(architecture, "\n## The life of one event\n")
	section, _, _ = strings.Cut(section, "\n## ")
	lines := numbered.FindAllStringSubmatch(section, -1)
	ofAnyMode := slices.IndexFunc(lines, func(line []string) bool { return len(functions(line[1])) == 0 })
	if ofAnyMode <= 0 || ofAnyMode == len(lines)-1 {
		return nil, errors.New("no line within the numbered list stands for the modes")
	}
	lists := map[string][]string{}
	for _, row := range ofMode.FindAllStringSubmatch(section, -1) {
		own := functions(row[2])
		limit := maxHops
		if row[1] != "nftables" && strings.Contains(row[2], "`nftables.") {
			limit = maxHopsRules
		}
		if n := len(lines) - 1 + len(own); n > limit {
			return nil, fmt.Errorf("mode %s has %d hops; at most %d can be followed by a reader", row[1], n, limit)
		}
		var list []string
		for i, line := range lines {
			if list = append(list, functions(line[1])...); i == ofAnyMode {
				list = append(list, own...)
			}
		}
		lists[row[1]] = list
	}
	return lists, nil
}

// functions returns the functions that a text names.
func functions(text string) (names []string) {
	for _, name := range function.FindAllStringSubmatch(text, -1) {
		names = append(names, name[1])
	}
	return names
}

// passedBy are the packages that need no hop of their own: the words that all packages share, what
// reads an object, and what tests use of it.
var passedBy = []string{"proxy/", "apiobject/", "conformance/"}

// writer calls what a mode writes with.
const writer = "differ.Differ.write"

// compare returns what is wrong with a list, given the call stacks of an event in order; "" if
// nothing is. The event must come to the functions in the order of the list. The list lacks a
// function if the event enters a package by it, or if it writes: calls of the kernel that only an
// Apply leads to come from a function that is not listed, since each Apply passes on.
func compare(list []string, stacks []stack) string {
	all := entered(stacks)
	last := -1
	for n, name := range list {
		at := slices.Index(all, name)
		switch {
		case at < 0:
			return fmt.Sprintf("the event does not come to %s", name)
		case at < last:
			return fmt.Sprintf("the event comes to %s before %s, not after it", name, list[n-1])
		}
		last = at
	}
	for _, s := range stacks {
		if lacks := s.lacks(list); lacks != "" {
			return lacks
		}
	}
	return ""
}

// entered returns the functions that an event enters, each once, in order.
func entered(stacks []stack) (names []string) {
	for _, s := range stacks {
		for _, f := range s {
			if !slices.Contains(names, f.name) {
				names = append(names, f.name)
			}
		}
	}
	return names
}

// lacks returns what a list lacks of a stack. The engine's loop, which is the outermost function of
// most stacks, is started long before the event.
func (s stack) lacks(list []string) string {
	caller, innermost := call{name: "the watch"}, ""
	packages := map[string]bool{"engine": s[0].pkg == "engine"}
	for _, f := range s {
		if slices.ContainsFunc(passedBy, func(p string) bool { return strings.HasPrefix(f.pkg+"/", p) }) {
			continue
		}
		byKernel := strings.HasPrefix(f.pkg, "kernel/")
		enters := !packages[f.pkg] && !byKernel || caller.name == writer && f.pkg != caller.pkg
		switch {
		case slices.Contains(list, f.name):
			innermost = f.name
		case enters:
			return fmt.Sprintf("%s calls %s, which is not listed", caller.name, f.name)
		case byKernel && (innermost == "" || strings.HasSuffix(innermost, ".Apply")):
			return fmt.Sprintf("what calls %s after %s is not listed", f.name, innermost)
		}
		packages[f.pkg], caller = true, f
	}
	return ""
}
