package app

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/config/v1alpha1"

	"sluice/internal/apiclient"
	"sluice/internal/engine"
	"sluice/internal/proxy"
	"sluice/internal/source"
	"sluice/internal/source/informer"
	"sluice/internal/source/manifest"
)

// objectSource is where objects are read from: a folder, or an API server.
type objectSource struct {
	manifests string         // the folder; empty: an API server
	reading   chan struct{}  // a semaphore for reading the folder to answer a query
	client    rest.Interface // nil for a folder
	config    *rest.Config   // of the client

	contacts *informer.Contacts // with the API server; nil for a folder
}

// objectSource returns the source that the command line selects. A folder takes
// precedence over a kubeconfig in the configuration file, but excludes the flags
// for an API server.
func (o *Options) objectSource(c v1alpha1.ClientConnectionConfiguration) (objectSource, error) {
	if o.Manifests == "" {
		return o.apiServer(c)
	}
	for _, other := range []struct{ flag, value string }{{"--kubeconfig", c.Kubeconfig}, {"--master", o.Master}} {
		if other.value != "" && (other.flag == "--master" || o.ConfigFile == "") {
			return objectSource{}, fmt.Errorf("--manifests %q and %s %q: only one can be the source",
				o.Manifests, other.flag, other.value)
		}
	}
	if _, err := os.ReadDir(o.Manifests); err != nil {
		return objectSource{}, fmt.Errorf("--manifests %q: %w", o.Manifests, err)
	}
	return folderSource(o.Manifests), nil
}

func folderSource(dir string) objectSource {
	return objectSource{manifests: dir, reading: make(chan struct{}, 1)}
}

func (o *Options) apiServer(c v1alpha1.ClientConnectionConfiguration) (objectSource, error) {
	load := rest.InClusterConfig
	if c.Kubeconfig != "" || o.Master != "" {
		load = func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags(o.Master, c.Kubeconfig) }
	}
	cfg, err := load()
	if errors.Is(err, rest.ErrNotInCluster) {
		return objectSource{}, errors.New("no source of Services: give --manifests DIR, --kubeconfig FILE " +
			"or --master URL, or run in a cluster")
	}
	if err != nil {
		return objectSource{}, o.clientError(c.Kubeconfig, err)
	}
	cfg.UserAgent = "sluice/" + o.version.reported()
	cfg.ContentType = c.ContentType
	cfg.AcceptContentTypes = cmp.Or(c.AcceptContentTypes, cfg.ContentType+",application/json")
	cfg.QPS, cfg.Burst = c.QPS, int(c.Burst)
	client, err := apiclient.New(cfg)
	if err != nil {
		return objectSource{}, o.clientError(c.Kubeconfig, err)
	}
	return objectSource{client: client, config: cfg, contacts: &informer.Contacts{}}, nil
}

// clientError prefixes an error with the flag or field that configures the client.
func (o *Options) clientError(kubeconfig string, err error) error {
	var from []string
	switch {
	case kubeconfig != "" && o.ConfigFile != "":
		from = append(from, fmt.Sprintf("--config %q: clientConnection.kubeconfig %q", o.ConfigFile, kubeconfig))
	case kubeconfig != "":
		from = append(from, fmt.Sprintf("--kubeconfig %q", kubeconfig))
	}
	if o.Master != "" {
		from = append(from, fmt.Sprintf("--master %q", o.Master))
	}
	return fmt.Errorf("%s: %w", cmp.Or(strings.Join(from, " with "), "use the cluster's service account"), err)
}

func (s objectSource) String() string {
	if s.manifests != "" {
		return "folder " + s.manifests
	}
	return "API server " + s.config.Host
}

// open returns the source, which reads nothing before it is run. A folder calls
// report with the problems of its files; that the API server is not heard from is a
// doubt.
func (s objectSource) open(node string, doubts *engine.Doubts, report func([]manifest.Problem)) source.Source {
	if s.manifests != "" {
		others := func(names []string) { doubtNode(doubts, node, s.manifests, names) }
		return manifest.Source{Dir: s.manifests, NodeName: node, Report: report, OtherNodes: others}
	}
	s.contacts.Report = func(lost []informer.Lost) { doubtLost(doubts, lost) }
	return informer.New(s.client, node, s.contacts)
}

// contactMetrics returns the metric of the last contact with the API server.
func (s objectSource) contactMetrics() []proxy.Metric {
	if s.contacts == nil {
		return nil
	}
	return []proxy.Metric{{
		Name: "source_last_contact_timestamp_seconds", Labels: []string{"resource"},
		Help: "When the API server last sent something about a resource, be it a bookmark; before the first time, when the daemon began to ask",
		Read: func(yield func(float64, ...string)) {
			for resource, at := range s.contacts.Last() {
				yield(float64(at.UnixMilli())/1000, resource)
			}
		},
	}}
}

// nodesNamed is how many other Nodes a doubt names.
const nodesNamed = 3

// doubtNode sets or clears the doubt that follows from a folder that has Nodes, and none
// of this daemon's name. Without any Node there is no doubt: a folder need not have one.
func doubtNode(doubts *engine.Doubts, node, folder string, others []string) {
	if len(others) == 0 {
		doubts.Clear(engine.NodeUnknown, "")
		return
	}
	more := ""
	if rest := len(others) - nodesNamed; rest > 0 {
		more = fmt.Sprintf(" and %d more", rest)
	}
	doubts.Set(engine.Doubt{
		Kind: engine.NodeUnknown,
		Reason: fmt.Sprintf("%s has Nodes (%s%s), and none is named %s: no endpoint that names another node counts as local, the zone and addresses are unknown",
			folder, strings.Join(others[:min(len(others), nodesNamed)], ", "), more, node),
		Next: "the folder is read again when it changes; --hostname-override sets this node's name",
	})
}

// doubtLost sets or clears the doubt that follows from kinds of objects that the API
// server is not heard from about, one for all of them.
func doubtLost(doubts *engine.Doubts, lost []informer.Lost) {
	kind := engine.SourceIncomplete
	if slices.ContainsFunc(lost, func(l informer.Lost) bool { return l.Resource == "services" || l.Resource == "endpointslices" }) {
		kind = engine.SourceSilent
	}
	for _, k := range []engine.DoubtKind{engine.SourceSilent, engine.SourceIncomplete} {
		if k != kind || len(lost) == 0 {
			doubts.Clear(k, "")
		}
	}
	if len(lost) == 0 {
		return
	}
	d := engine.Doubt{Kind: kind, Next: "the API server is asked again", Since: lost[0].Since}
	var reasons, names []string
	for i, l := range lost {
		names = append(names, l.Resource)
		if i+1 == len(lost) || lost[i+1].Reason != l.Reason {
			reasons = append(reasons, strings.Join(names, ", ")+": "+l.Reason)
			names = nil
		}
		if l.Since.Before(d.Since) {
			d.Since = l.Since
		}
		if d.NextAt.IsZero() || !l.NextTry.IsZero() && l.NextTry.Before(d.NextAt) {
			d.NextAt = l.NextTry
		}
	}
	heard := slices.MaxFunc(lost, func(a, b informer.Lost) int { return a.Heard.Compare(b.Heard) }).Heard
	last := "nothing was heard of them since the start"
	if !heard.IsZero() {
		last = "they were last heard of at " + heard.UTC().Format(time.RFC3339)
	}
	d.Reason = fmt.Sprintf("changes of objects are not known (%s); %s", strings.Join(reasons, "; "), last)
	doubts.Set(d)
}
