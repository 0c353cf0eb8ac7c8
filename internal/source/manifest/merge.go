package manifest

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// merge puts the entries of several readings together. Of two objects with the
// same identity the first is used and the other reported.
func merge(readings []*reading) ([]entry, []Problem) {
	var out []entry
	var problems []Problem
	first := map[objectID]place{}
	for _, r := range readings {
		for _, e := range r.entries {
			if earlier, twice := first[e.id]; twice {
				problems = append(problems, e.problem("", fmt.Sprintf("is ignored, the same object is in %s", earlier)))
				continue
			}
			first[e.id] = e.from
			out = append(out, e)
		}
	}
	return out, problems
}

// problem returns a problem with the entry's object.
func (e *entry) problem(field, reason string) Problem {
	return Problem{
		File: e.from.file, Document: e.from.document, Line: e.from.line,
		Object: e.id.String(), Field: join(e.from.at, field), Reason: reason,
	}
}

// compare looks for what only shows when Services and EndpointSlices are put
// side by side: a port of a Service that its slices do not have.
func compare(entries []entry) []Problem {
	names := map[objectID]map[string]bool{}
	for _, e := range entries {
		slice, ok := e.object.(*discoveryv1.EndpointSlice)
		if !ok || len(slice.Endpoints) == 0 {
			continue // An empty slice says nothing about ports.
		}
		svc := objectID{"Service", slice.Namespace, slice.Labels[discoveryv1.LabelServiceName]}
		if names[svc] == nil {
			names[svc] = map[string]bool{}
		}
		for _, p := range slice.Ports {
			if p.Name != nil {
				names[svc][*p.Name] = true
			}
		}
	}
	var problems []Problem
	for _, e := range entries {
		svc, ok := e.object.(*v1.Service)
		if !ok || names[e.id] == nil || svc.Spec.Type == v1.ServiceTypeExternalName {
			continue
		}
		for i, p := range svc.Spec.Ports {
			if names[e.id][p.Name] {
				continue
			}
			note := e.problem(fmt.Sprintf("spec.ports[%d].name", i),
				fmt.Sprintf("no EndpointSlice of the Service has a port named %s", quote(p.Name)))
			note.Note = true
			problems = append(problems, note)
		}
	}
	return problems
}
