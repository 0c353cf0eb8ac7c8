package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"k8s.io/klog/v2"
)

// Problem is something wrong in a manifest.
type Problem struct {
	File     string // relative to the folder; the folder itself as it was configured
	Document int    // counted from 1, without empty documents; 0 for a problem of the whole file
	Line     int    // the line of the problem if known, otherwise that of the document
	Object   string // like "Service default/web"; empty if not known
	Field    string // like "spec.ports[0].port"; empty for a problem of the whole object
	Reason   string
	Note     bool // it is for information only: nothing is left out
}

func (p Problem) String() string { return line(p.Where(), p.Field, p.Reason) }

// Where returns the file, the place in it and the object, as far as known.
func (p Problem) Where() string {
	document := ""
	if p.Document > 0 {
		document = fmt.Sprintf("document %d (line %d)", p.Document, p.Line)
	}
	return line(p.File, document, p.Object)
}

// line joins the parts that are not empty.
func line(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(part string) bool { return part == "" })
	return strings.Map(func(r rune) rune {
		// Keys and names are from the file, and must not forge a log line.
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.Join(parts, ": "))
}

// identity returns the problem without the fields that change when an object is moved
// within its file. Problems with the same identity are the same problem.
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

// reporter logs problems when they appear and when they are resolved.
type reporter struct {
	log   klog.Logger
	known map[Problem]Problem // by identity
}

// update logs the difference between the last problems and the current ones.
func (r *reporter) update(now []Problem) {
	sortProblems(now)
	current := make(map[Problem]Problem, len(now))
	for _, p := range now {
		id := p.identity()
		_, duplicate := current[id]
		_, known := r.known[id]
		switch current[id] = p; {
		case duplicate || known:
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
		r.log.Info("Manifest problem is resolved", "problem", p.String())
	}
	r.known = current
}
