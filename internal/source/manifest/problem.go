package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"k8s.io/klog/v2"
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

func (p Problem) String() string { return line(p.Where(), p.Field, p.Reason) }

// Where returns the file, the place in it and the object, as far as they are known.
func (p Problem) Where() string {
	document := ""
	if p.Document > 0 {
		document = fmt.Sprintf("document %d (line %d)", p.Document, p.Line)
	}
	return line(p.File, document, p.Object)
}

// line joins what there is of some parts.
func line(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(part string) bool { return part == "" })
	return strings.Map(func(r rune) rune {
		// Keys and names come from the file; they must not break the line.
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.Join(parts, ": "))
}

// identity is what makes a problem the same one in two readings: moving an
// object within its file neither mends nor makes it.
func (p Problem) identity() Problem {
	p.Line = 0
	if p.Object != "" {
		p.Document = 0
	}
	return p
}

func sortProblems(all []Problem) {
	slices.SortStableFunc(all, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Document, b.Document), cmp.Compare(a.Line, b.Line))
	})
}

// reporter logs problems when they appear and when they are gone.
type reporter struct {
	log   klog.Logger
	known map[Problem]Problem // by identity
}

// update takes the problems that there are now.
func (r *reporter) update(now []Problem) {
	sortProblems(now)
	current := make(map[Problem]Problem, len(now))
	for _, p := range now {
		id := p.identity()
		_, twice := current[id]
		_, known := r.known[id]
		switch current[id] = p; {
		case twice || known:
		case p.Note:
			r.log.Info("Manifest note", "problem", p.String())
		default:
			r.log.Error(nil, "Manifest problem", "problem", p.String())
		}
	}
	var gone []Problem
	for id, p := range r.known {
		if _, still := current[id]; !still {
			gone = append(gone, p)
		}
	}
	sortProblems(gone)
	for _, p := range gone {
		r.log.Info("Manifest mended", "problem", p.String())
	}
	r.known = current
}
