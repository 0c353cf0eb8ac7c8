package manifest

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"sluice/internal/apiobject"
	"sluice/internal/source"
)

const (
	serviceText = `apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: 10.96.0.10
  ports:
  - name: http
    port: 80
`
	sliceText = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints:
- addresses: [10.1.0.1]
ports:
- name: http
  port: 8080
`
)

// FuzzRead checks that no text makes the reader panic or print a problem on
// two lines, and that what it understands it understands again, as the resolver
// does.
func FuzzRead(f *testing.F) {
	for _, text := range []string{
		serviceText, sliceText, serviceText + "---\n" + sliceText + "---\n" + serviceText,
		strings.Replace(serviceText, "port: 80", "port: 80\n    port: 81", 1),
		strings.Replace(serviceText, "clusterIP: 10.96.0.10", "clusterIPs: ['fd00::1', 10.0.0.1]\n  type: LoadBalancer\n  sessionAffinity: ClientIP", 1),
		strings.Replace(serviceText, "clusterIP: 10.96.0.10", "clusterIP: '::ffff:10.0.0.1'\n  externalIPs: [010.0.0.1, 'fd00::1', x]", 1),
		serviceText + "status: {loadBalancer: {ingress: [{ip: 192.0.2.1, ipMode: Proxy}, {ip: 192.0.2.300}]}}\n",
		strings.Replace(sliceText, "- addresses: [10.1.0.1]", "- {addresses: [10.1.0.1], conditions: {ready: yes}, nodeName: a, hints: {forZones: [{name: z}]}}\n- {addresses: [x]}", 1),
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
		first := read(file, []byte(text))
		for _, p := range first.problems {
			if line := p.String(); strings.ContainsAny(line, "\r\n") || p.Reason == "" || p.Document < 1 || p.Line < 1 {
				t.Errorf("problem %+v prints as %q", p, line)
			}
		}
		again := read("again.yaml", []byte(marshal(t, first.entries)))
		for _, p := range again.problems {
			if !p.Note {
				t.Errorf("problem of the second reading: %v", p)
			}
		}
		if len(first.entries) != len(again.entries) {
			t.Fatalf("%d objects in the first reading, %d in the second", len(first.entries), len(again.entries))
		}
		for i, e := range again.entries {
			e.object.SetResourceVersion("") // it follows from the text
			if diff := cmp.Diff(first.entries[i].object, e.object); diff != "" {
				t.Errorf("the second reading differs (-first +second):\n%s", diff)
			}
			for _, p := range parse(e.object) {
				if p.Level != apiobject.Note {
					t.Errorf("problem of an object that was accepted: %+v", p)
				}
			}
		}
	})
}

// parse reads an object as the resolver does.
func parse(obj metav1.Object) (problems []apiobject.Problem) {
	switch obj := obj.(type) {
	case *v1.Service:
		_, problems = apiobject.ParseService(obj, apiobject.Allowed{})
	case *discoveryv1.EndpointSlice:
		_, problems = apiobject.ParseEndpointSlice(obj, func(*discoveryv1.Endpoint, netip.Addr) {})
	case *v1.Node:
		_, problems = apiobject.ParseNode(obj)
	case *networkingv1.ServiceCIDR:
		_, problems = apiobject.ParseServiceCIDR(obj)
	}
	return problems
}

// marshal writes all objects as the documents of one file.
func marshal(t *testing.T, entries []entry) string {
	t.Helper()
	var out strings.Builder
	for _, e := range entries {
		e.object.SetResourceVersion("")
		e.object.(source.Object).GetObjectKind().SetGroupVersionKind(
			schema.FromAPIVersionAndKind(kinds[e.id.kind].apiVersion, e.id.kind))
		text, err := yaml.Marshal(e.object)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n" + string(text))
	}
	return out.String()
}
