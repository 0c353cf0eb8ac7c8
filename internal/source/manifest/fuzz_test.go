package manifest_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"sluice/internal/source"
	"sluice/internal/source/manifest"
)

// FuzzLoad checks that no text makes the reader panic or print a problem on
// two lines, and that what it understands it understands again.
func FuzzLoad(f *testing.F) {
	for _, text := range []string{
		goodService, goodSlice, documents(goodService, goodSlice, goodService),
		edit(goodService, "port: 80", "port: 80\n    port: 81"),
		edit(goodService, "clusterIP: 10.96.0.10", "clusterIPs: ['fd00::1', 10.0.0.1]\n  type: LoadBalancer\n  sessionAffinity: ClientIP"),
		goodService + "status: {loadBalancer: {ingress: [{ip: 192.0.2.1, ipMode: Proxy}]}}\n",
		edit(goodSlice, "- addresses: [10.1.0.1]", "- {addresses: [10.1.0.1], conditions: {ready: yes}, nodeName: a, hints: {forZones: [{name: z}]}}"),
		"apiVersion: v1\nkind: ServiceList\nitems:\n- {metadata: {name: a}, spec: {clusterIP: None}}\n- &a {b: *a}\n",
		"apiVersion: v1\nkind: Node\nmetadata: {name: n1, deletionTimestamp: 2020-01-01T00:00:00Z}\nspec: {podCIDR: 10.1.0.0/24, taints: [{key: a}]}\n",
		"apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: k}\nspec: {cidrs: [10.96.0.0/16, 'fd00::/108']}\n",
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},"spec":{"ports":[{"port":"x"}]}} {`,
		"%YAML 1.1\n---\na: &x [*x]\n...\n<<: {a: b}\n",
	} {
		f.Add(text, false)
		f.Add(text, true)
	}
	f.Fuzz(func(t *testing.T, text string, asJSON bool) {
		file := "fuzz.yaml"
		if asJSON {
			file = "fuzz.json"
		}
		objects, problems := load(t, file, text)
		for _, p := range problems {
			if line := p.String(); strings.ContainsAny(line, "\r\n") || p.Reason == "" || p.Document < 1 || p.Line < 1 {
				t.Errorf("problem %+v prints as %q", p, line)
			}
		}
		again, problems := load(t, "again.yaml", marshal(t, objects))
		for _, p := range problems {
			if !p.Note {
				t.Errorf("problem of the second reading: %v", p)
			}
		}
		marshal(t, again) // which clears their versions
		if diff := cmp.Diff(objects, again); diff != "" {
			t.Errorf("the second reading differs (-first +second):\n%s", diff)
		}
	})
}

// marshal writes all objects as the documents of one file.
func marshal(t *testing.T, o *manifest.Objects) string {
	t.Helper()
	var out strings.Builder
	add := func(obj source.Object, apiVersion, kind string) {
		obj.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind))
		obj.SetResourceVersion("") // it follows from the text
		text, err := yaml.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n" + string(text))
	}
	for _, s := range o.Services {
		add(s, "v1", "Service")
	}
	for _, s := range o.EndpointSlices {
		add(s, "discovery.k8s.io/v1", "EndpointSlice")
	}
	for _, n := range o.Nodes {
		add(n, "v1", "Node")
	}
	for _, c := range o.ServiceCIDRs {
		add(c, "networking.k8s.io/v1", "ServiceCIDR")
	}
	return out.String()
}
