package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Problem is one thing in a manifest that is not as it should be.
type Problem struct {
	File     string // as it was named, or relative to the folder
	Document int    // counted from 1 over the documents that hold something; 0: the file as a whole
	Line     int    // of what is wrong when that is known, else where the document begins
	Object   string // "Service default/web"; empty when not known
	Field    string // "spec.ports[0].port"; empty when it is not about one field
	Reason   string
	Note     bool // only worth knowing: all that can be used is used
}

// String returns the problem as one line.
func (p Problem) String() string {
	parts := []string{p.File}
	if p.Document > 0 {
		parts = append(parts, fmt.Sprintf("document %d (line %d)", p.Document, p.Line))
	}
	for _, part := range []string{p.Object, p.Field, p.Reason} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Map(func(r rune) rune {
		// Keys and names come from the file; they must not break the line.
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.Join(parts, ": "))
}

// problemKey is what makes a problem the same one in two readings: moving an
// object within its file neither mends nor makes it.
type problemKey struct {
	file, object, field, reason string
	document                    int
}

func (p Problem) key() problemKey {
	k := problemKey{file: p.File, object: p.Object, field: p.Field, reason: p.Reason}
	if p.Object == "" {
		k.document = p.Document
	}
	return k
}

func sortProblems(all []Problem) {
	slices.SortStableFunc(all, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Document, b.Document), cmp.Compare(a.Line, b.Line))
	})
}

// reporter tells of problems when they appear and when they are gone.
type reporter struct {
	appeared, mended func(Problem)
	known            map[problemKey]Problem
}

// update takes the problems that there are now.
func (r *reporter) update(now []Problem) {
	sortProblems(now)
	current := make(map[problemKey]Problem, len(now))
	for _, p := range now {
		k := p.key()
		if _, twice := current[k]; twice {
			continue
		}
		current[k] = p
		if _, old := r.known[k]; !old {
			r.appeared(p)
		}
	}
	var gone []Problem
	for k, p := range r.known {
		if _, still := current[k]; !still {
			gone = append(gone, p)
		}
	}
	sortProblems(gone)
	for _, p := range gone {
		r.mended(p)
	}
	r.known = current
}
