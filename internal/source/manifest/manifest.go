package manifest

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"sluice/internal/source"
)

// Settings says which folder to read and whom to tell.
type Settings struct {
	// Dir is the folder. It must exist when Run begins.
	Dir string
	// NodeName names the only Node that is delivered.
	NodeName string
	// Report is told each problem when it appears; nil: it is logged.
	Report func(Problem)
	// Mended is told each problem that is gone; nil: it is logged.
	Mended func(Problem)
}

// New returns the Source that reads and watches a folder.
func New(s Settings) source.Source { return &folderSource{s} }

// Objects is what one reading found, in the order of files and documents. All
// objects are defaulted, checked and trimmed; they are not yet filtered, so
// there may be headless Services and Nodes of any name.
type Objects struct {
	Services       []*v1.Service
	EndpointSlices []*discoveryv1.EndpointSlice
	Nodes          []*v1.Node
	ServiceCIDRs   []*networkingv1.ServiceCIDR
}

// Load reads a folder once. Objects that are wrong are missing from the result
// and named among the problems; the error is for a folder that cannot be read.
func Load(dir string) (*Objects, []Problem, error) {
	f := newFolder(dir)
	if err := f.scan(nil, nil); err != nil {
		return nil, nil, fmt.Errorf("read manifest folder %s: %w", dir, bare(err))
	}
	entries, problems := f.merged()
	sortProblems(problems)
	return collect(entries), problems, nil
}

// Parse reads the text of one file. The name is used in problems, and its
// ending says whether the text is JSON or YAML.
func Parse(file string, data []byte) (*Objects, []Problem) {
	r := read(file, data, newTrimmer())
	entries, problems := merge([]*reading{&r})
	problems = append(problems, r.problems...)
	sortProblems(problems)
	return collect(entries), problems
}

func collect(entries []entry) *Objects {
	var out Objects
	for _, e := range entries {
		switch obj := e.object.(type) {
		case *v1.Service:
			out.Services = append(out.Services, obj)
		case *discoveryv1.EndpointSlice:
			out.EndpointSlices = append(out.EndpointSlices, obj)
		case *v1.Node:
			out.Nodes = append(out.Nodes, obj)
		case *networkingv1.ServiceCIDR:
			out.ServiceCIDRs = append(out.ServiceCIDRs, obj)
		default:
			panic(fmt.Sprintf("manifest: an entry holds a %T", e.object))
		}
	}
	return &out
}
