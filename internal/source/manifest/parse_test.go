package manifest_test

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/resolve"
	"sluice/internal/source/manifest"
)

const goodService = `apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  clusterIP: 10.96.0.10
  ports:
  - name: http
    port: 80
`

const goodSlice = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  labels:
    kubernetes.io/service-name: web
addressType: IPv4
endpoints:
- addresses: [10.1.0.1]
ports:
- name: http
  port: 8080
`

// edit replaces one piece of a good manifest.
func edit(text, old, replacement string) string {
	if !strings.Contains(text, old) {
		panic("the text to replace is not there: " + old)
	}
	return strings.Replace(text, old, replacement, 1)
}

// load reads a folder with one file.
func load(t *testing.T, file, text string) ([]metav1.Object, []manifest.Problem) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	objects, problems, err := manifest.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return objects, problems
}

// lines returns the problems as they are printed.
func lines(problems []manifest.Problem) []string {
	var out []string
	for _, p := range problems {
		out = append(out, p.String())
	}
	return out
}

// kept returns the identities of the objects that were read, by kind.
func kept(objects []metav1.Object) []string {
	of := map[string][]string{}
	for _, o := range objects {
		kind := reflect.TypeOf(o).Elem().Name()
		of[kind] = append(of[kind], kind+" "+strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/"))
	}
	return slices.Concat(of["Service"], of["EndpointSlice"], of["Node"], of["ServiceCIDR"])
}

const (
	svcWeb = "Service default/web"
	sliceW = "EndpointSlice default/web-1"
)

func TestLoadBadInput(t *testing.T) {
	tests := []struct {
		name  string
		text  string
		kept  []string
		lines []string
	}{
		{"good", goodService + "---\n" + goodSlice, []string{svcWeb, sliceW}, nil},
		{
			"does not parse", "a: b: c\n---\n" + goodService,
			[]string{svcWeb},
			[]string{`a.yaml: document 1 (line 1): does not parse: mapping values are not allowed in this context`},
		},
		{
			"does not parse in second document", goodService + "---\n# a comment\nkind: [\n---\n" + goodSlice,
			[]string{svcWeb, sliceW},
			[]string{`a.yaml: document 2 (line 12): does not parse: did not find expected node content`},
		},
		{
			"wrong type", edit(goodService, "port: 80", "port: eighty"), nil,
			[]string{`a.yaml: document 1 (line 9): Service default/web: spec.ports[0].port: cannot unmarshal string into Go value of type int32`},
		},
		{
			"number that does not fit", edit(goodService, "port: 80", "port: 99999999999"), nil,
			[]string{`a.yaml: document 1 (line 9): Service default/web: spec.ports[0].port: cannot unmarshal number 99999999999 into Go value of type int32`},
		},
		{
			"name that YAML takes for a boolean", edit(goodService, "name: web", "name: n"), nil,
			[]string{`a.yaml: document 1 (line 4): Service: metadata.name: cannot unmarshal bool into Go value of type string; put it in quotes`},
		},
		{
			"list where a mapping belongs", edit(goodService, "spec:", "status: []\nspec:"), nil,
			[]string{`a.yaml: document 1 (line 5): Service default/web: status: cannot unmarshal array into Go value of type v1.ServiceStatus`},
		},
		{
			"mapping where a list belongs", edit(goodSlice, "- addresses: [10.1.0.1]", "  addresses: [10.1.0.1]"), nil,
			[]string{`a.yaml: document 1 (line 8): EndpointSlice default/web-1: endpoints: cannot unmarshal object into Go value of type []v1.Endpoint`},
		},
		{
			"unknown field", edit(goodService, "clusterIP:", "clusterAddress: x\n  clusterIP:"),
			[]string{svcWeb},
			[]string{`a.yaml: document 1 (line 6): Service default/web: spec.clusterAddress: is ignored: Service has no such field`},
		},
		{
			"duplicate key", edit(goodService, "port: 80", "port: 80\n    port: 81"), nil,
			[]string{`a.yaml: document 1 (line 10): Service default/web: spec.ports[0].port: is set twice`},
		},
		{
			"duplicate label", edit(goodSlice, "    kubernetes.io/service-name: web\n", "    kubernetes.io/service-name: web\n    kubernetes.io/service-name: db\n"), nil,
			[]string{`a.yaml: document 1 (line 7): EndpointSlice default/web-1: metadata.labels.kubernetes.io/service-name: is set twice`},
		},
		{
			"cluster IP is no address", edit(goodService, "10.96.0.10", "10.96.0"), nil,
			[]string{`a.yaml: document 1 (line 6): Service default/web: spec.clusterIP: "10.96.0" is not an IP address`},
		},
		{
			"cluster IP of the wrong family", edit(goodService, "clusterIP: 10.96.0.10", "clusterIP: 10.96.0.10\n  ipFamilies: [IPv6]"), nil,
			[]string{`a.yaml: document 1 (line 6): Service default/web: spec.clusterIP: 10.96.0.10 is not an IPv6 address, but spec.ipFamilies[0] requires one`},
		},
		{
			"two cluster IPs of one family", edit(goodService, "clusterIP: 10.96.0.10", "clusterIPs: [10.96.0.10, 10.96.0.11]"), nil,
			[]string{`a.yaml: document 1 (line 6): Service default/web: spec.clusterIPs[1]: 10.96.0.11 is a second IPv4 address`},
		},
		{
			"cluster IPs disagree", edit(goodService, "clusterIP: 10.96.0.10", "clusterIP: 10.96.0.10\n  clusterIPs: [10.96.0.11]"), nil,
			[]string{`a.yaml: document 1 (line 7): Service default/web: spec.clusterIPs[0]: "10.96.0.11" is not spec.clusterIP "10.96.0.10"`},
		},
		{
			"IPv4 in IPv6", edit(goodService, "10.96.0.10", "'::ffff:10.96.0.10'"), nil,
			[]string{`a.yaml: document 1 (line 6): Service default/web: spec.clusterIP: ::ffff:10.96.0.10 is an IPv4-mapped IPv6 address; write 10.96.0.10`},
		},
		{
			"no cluster IP", edit(goodService, "  clusterIP: 10.96.0.10\n", ""),
			[]string{svcWeb},
			[]string{`a.yaml: document 1 (line 5): Service default/web: spec.clusterIP: is missing, so nothing is forwarded; only an API server can allocate one`},
		},
		{
			"external IP", edit(goodService, "spec:", "spec:\n  externalIPs: [192.0.2.1, nowhere, 'fd00::1']"),
			[]string{svcWeb},
			[]string{
				`a.yaml: document 1 (line 6): Service default/web: spec.externalIPs[1]: "nowhere" is not an IP address; it is left out`,
				`a.yaml: document 1 (line 6): Service default/web: spec.externalIPs[2]: fd00::1 is an IPv6 address and the Service has no IPv6 ClusterIP; it is left out`,
			},
		},
		{
			"load balancer ingress", goodService + "status:\n  loadBalancer:\n    ingress:\n    - ip: 192.0.2.300\n",
			[]string{svcWeb},
			[]string{`a.yaml: document 1 (line 13): Service default/web: status.loadBalancer.ingress[0].ip: "192.0.2.300" is not an IP address; it is left out`},
		},
		{
			"port 0", edit(goodService, "port: 80", "port: 0"), nil,
			[]string{`a.yaml: document 1 (line 9): Service default/web: spec.ports[0].port: 0 is not a port (1 to 65535)`},
		},
		{
			"port 70000", goodSlice + "---\n" + edit(goodService, "port: 80", "port: 70000"),
			[]string{sliceW},
			[]string{`a.yaml: document 2 (line 22): Service default/web: spec.ports[0].port: 70000 is not a port (1 to 65535)`},
		},
		{
			"node port 70000", edit(goodService, "port: 80", "port: 80\n    nodePort: 70000"), nil,
			[]string{`a.yaml: document 1 (line 10): Service default/web: spec.ports[0].nodePort: 70000 is not a port (1 to 65535)`},
		},
		{
			"slice port 0", edit(goodSlice, "port: 8080", "port: 0"), nil,
			[]string{`a.yaml: document 1 (line 12): EndpointSlice default/web-1: ports[0].port: 0 is not a port (1 to 65535)`},
		},
		{
			"slice without a port number", edit(goodSlice, "  port: 8080\n", ""),
			[]string{sliceW},
			[]string{`a.yaml: document 1 (line 11): EndpointSlice default/web-1: ports[0].port: is missing: the port is ignored`},
		},
		{
			"protocol", edit(goodService, "port: 80", "port: 80\n    protocol: ICMP"), nil,
			[]string{`a.yaml: document 1 (line 10): Service default/web: spec.ports[0].protocol: "ICMP" is not TCP, UDP or SCTP`},
		},
		{
			"port name", edit(goodService, "name: http", "name: HTTP"), nil,
			[]string{`a.yaml: document 1 (line 8): Service default/web: spec.ports[0].name: "HTTP" is not a valid name: use lower case letters, digits and -`},
		},
		{
			"port name twice", goodService + "  - name: http\n    port: 81\n", nil,
			[]string{`a.yaml: document 1 (line 10): Service default/web: spec.ports[1].name: "http" is the name of spec.ports[0] too`},
		},
		{
			"port twice", goodService + "  - name: web\n    port: 80\n", nil,
			[]string{`a.yaml: document 1 (line 11): Service default/web: spec.ports[1].port: TCP 80 is spec.ports[0] too`},
		},
		{
			"port without a name among several", goodService + "  - port: 81\n", nil,
			[]string{`a.yaml: document 1 (line 10): Service default/web: spec.ports[1].name: is missing; it is optional only for a single port`},
		},
		{
			"type", edit(goodService, "spec:", "spec:\n  type: Cluster"), nil,
			[]string{`a.yaml: document 1 (line 6): Service default/web: spec.type: "Cluster" is not ClusterIP, NodePort, LoadBalancer or ExternalName`},
		},
		{
			"affinity timeout", edit(goodService, "spec:", "spec:\n  sessionAffinity: ClientIP\n  sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}"), nil,
			[]string{`a.yaml: document 1 (line 7): Service default/web: spec.sessionAffinityConfig.clientIP.timeoutSeconds: 0 is not a timeout (1 to 86400 seconds)`},
		},
		{
			"source range", edit(goodService, "spec:", "spec:\n  loadBalancerSourceRanges: [' 10.0.0.0/8 ', 10.0.0.1]"), nil,
			[]string{`a.yaml: document 1 (line 6): Service default/web: spec.loadBalancerSourceRanges[1]: "10.0.0.1" is not a CIDR range such as 10.0.0.0/8 or fd00::/8`},
		},
		{
			"empty slice", edit(goodSlice, "\n- addresses: [10.1.0.1]", " []"),
			[]string{sliceW},
			[]string{`a.yaml: document 1 (line 8): EndpointSlice default/web-1: endpoints: is empty`},
		},
		{
			"FQDN slice", edit(edit(goodSlice, "IPv4", "FQDN"), "10.1.0.1", "pod.example"),
			[]string{sliceW},
			[]string{`a.yaml: document 1 (line 7): EndpointSlice default/web-1: addressType: FQDN is not supported: the slice is ignored`},
		},
		{
			"address type", edit(goodSlice, "IPv4", "IPv5"), nil,
			[]string{`a.yaml: document 1 (line 7): EndpointSlice default/web-1: addressType: "IPv5" is not IPv4 or IPv6`},
		},
		{
			"endpoint without an address", edit(goodSlice, "ports:", "- addresses: []\nports:"),
			[]string{sliceW},
			[]string{`a.yaml: document 1 (line 10): EndpointSlice default/web-1: endpoints[1].addresses: is empty; the endpoint is left out`},
		},
		{
			"endpoint of the wrong family", edit(goodSlice, "ports:", "- addresses: ['fd00::1']\nports:"),
			[]string{sliceW},
			[]string{`a.yaml: document 1 (line 10): EndpointSlice default/web-1: endpoints[1].addresses[0]: fd00::1 is not an IPv4 address, but addressType requires one; the endpoint is left out`},
		},
		{
			"all endpoints of the wrong family", edit(goodSlice, "IPv4", "IPv6"), nil,
			[]string{
				`a.yaml: document 1 (line 8): EndpointSlice default/web-1: endpoints: none of the 1 endpoints can be used`,
				`a.yaml: document 1 (line 9): EndpointSlice default/web-1: endpoints[0].addresses[0]: 10.1.0.1 is not an IPv6 address, but addressType requires one; the endpoint is left out`,
			},
		},
		{
			"slice of no Service", edit(goodSlice, "kubernetes.io/service-name", "app"), nil,
			[]string{`a.yaml: document 1 (line 5): EndpointSlice default/web-1: metadata.labels.kubernetes.io/service-name: is missing, so the slice belongs to no Service`},
		},
		{
			"missing name", edit(goodService, "name: web", "labels: {}"), nil,
			[]string{`a.yaml: document 1 (line 3): Service: metadata.name: is missing`},
		},
		{
			"bad name", edit(goodService, "name: web", "name: Web_1"), nil,
			[]string{`a.yaml: document 1 (line 4): Service default/Web_1: metadata.name: "Web_1" is not a valid name: use lower case letters, digits, - and .`},
		},
		{
			"duplicate object", goodService + "---\n" + goodSlice + "---\n" + goodService,
			[]string{svcWeb, sliceW},
			[]string{`a.yaml: document 3 (line 24): Service default/web: is ignored, the same object is in a.yaml: document 1 (line 1)`},
		},
		{
			"old version", edit(goodSlice, "discovery.k8s.io/v1", "discovery.k8s.io/v1beta1"), nil,
			[]string{`a.yaml: document 1 (line 1): EndpointSlice default/web-1: apiVersion: "discovery.k8s.io/v1beta1" is not supported, EndpointSlice needs discovery.k8s.io/v1`},
		},
		{
			"other kinds, one note each",
			"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: b}\n" +
				"---\napiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: c}\n---\n" + goodService,
			[]string{svcWeb},
			[]string{
				`a.yaml: document 1 (line 1): Deployment: "apps/v1 Deployment" is ignored: Service, EndpointSlice, Node and ServiceCIDR are read`,
				`a.yaml: document 3 (line 9): Service: "serving.knative.dev/v1 Service" is ignored: Service, EndpointSlice, Node and ServiceCIDR are read`,
			},
		},
		{
			"no kind", "apiVersion: v1\nmetadata: {name: a}\n", nil,
			[]string{`a.yaml: document 1 (line 1): kind: is missing`},
		},
		{
			"kind is a number", "apiVersion: v1\nkind: 7\n", nil,
			[]string{`a.yaml: document 1 (line 2): kind: cannot unmarshal number into Go value of type string; put it in quotes`},
		},
		{
			"not an object", "- a\n- b\n", nil,
			[]string{`a.yaml: document 1 (line 1): is not an object: a mapping with apiVersion, kind and metadata is needed`},
		},
		{
			"ServiceCIDR", "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: k}\nspec:\n  cidrs:\n  - 10.96.0.1/16\n", nil,
			[]string{`a.yaml: document 1 (line 6): ServiceCIDR k: spec.cidrs[0]: 10.96.0.1/16 is an address in a range; write the range 10.96.0.0/16`},
		},
		{
			"Node", "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nspec: {podCIDR: 10.1.0.0/24}\nstatus:\n  addresses:\n  - {type: InternalIP, address: here}\n",
			[]string{"Node n1"},
			[]string{`a.yaml: document 1 (line 7): Node n1: status.addresses[0].address: "here" is not an IP address; it is left out`},
		},
		{
			"Node with a bad range", "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nspec: {podCIDR: 10.1.0.0}\n", nil,
			[]string{`a.yaml: document 1 (line 4): Node n1: spec.podCIDRs[0]: "10.1.0.0" is not a CIDR range such as 10.0.0.0/8 or fd00::/8`},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			objects, problems := load(t, "a.yaml", tt.text)
			if diff := cmp.Diff(tt.lines, lines(problems)); diff != "" {
				t.Errorf("problems mismatch (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.kept, kept(objects)); diff != "" {
				t.Errorf("objects mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLoadLists(t *testing.T) {
	indent := func(text string) string {
		return "- " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  ") + "\n"
	}
	bare := strings.SplitN(goodService, "\n", 3)[2]
	tests := []struct {
		name, file, text string
		kept, lines      []string
	}{
		{
			"List", "a.yaml",
			"apiVersion: v1\nkind: List\nitems:\n" + indent(goodService) + indent(edit(goodSlice, "8080", "0")),
			[]string{svcWeb},
			[]string{`a.yaml: document 1 (line 24): EndpointSlice default/web-1: items[1].ports[0].port: 0 is not a port (1 to 65535)`},
		},
		{"ServiceList inherits", "a.yaml", "apiVersion: v1\nkind: ServiceList\nitems:\n" + indent(bare), []string{svcWeb}, nil},
		{
			"duplicate key spoils one item", "a.yaml",
			"apiVersion: v1\nkind: List\nitems:\n" + indent(goodService+"    port: 81\n") + indent(goodSlice),
			[]string{sliceW},
			[]string{`a.yaml: document 1 (line 13): Service default/web: items[0].spec.ports[0].port: is set twice`},
		},
		{
			"duplicate key of the list", "a.yaml", "apiVersion: v1\nkind: List\nitems: []\nitems:\n" + indent(goodService), nil,
			[]string{`a.yaml: document 1 (line 4): List: items: is set twice`},
		},
		{
			"same object twice", "a.yaml", "apiVersion: v1\nkind: List\nitems:\n" + indent(goodService) + indent(goodService),
			[]string{svcWeb},
			[]string{`a.yaml: document 1 (line 1): Service default/web: items[1]: is ignored, the same object is in a.yaml: document 1 (line 1): items[0]`},
		},
		{
			"nested", "a.yaml", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: List, items: []}\n", nil,
			[]string{`a.yaml: document 1 (line 4): List: items[0].kind: a List in a List is not supported`},
		},
		{
			"other list", "a.yaml", "apiVersion: v1\nkind: PodList\nitems: []\n", nil,
			[]string{`a.yaml: document 1 (line 1): PodList: "v1 PodList" is ignored: Service, EndpointSlice, Node and ServiceCIDR are read`},
		},
		{
			"items are no list", "a.yaml", "apiVersion: v1\nkind: List\nitems: {}\n", nil,
			[]string{`a.yaml: document 1 (line 3): List: items: cannot unmarshal object into Go value of type []json.RawMessage`},
		},
		{
			"JSON values one after the other", "a.json",
			"{\"apiVersion\": \"v1\", \"kind\": \"Service\",\n\t\"metadata\": {\"name\": \"web\"},\n\"spec\": {\"clusterIP\": \"10.0.0.1\", \"ports\": [{\"port\": 80}]}}\n" +
				"{\"apiVersion\": \"v1\", \"kind\": \"Service\",\n\"metadata\": {\"name\": \"db\"},\n\"spec\": {\"clusterIP\": \"10.0.0.2\", \"ports\": [{\"port\": 80, \"port\": 81}]}}\n{",
			[]string{svcWeb},
			[]string{
				`a.json: document 2 (line 6): Service default/db: spec.ports[0].port: is set twice`,
				`a.json: document 3 (line 7): does not parse: unexpected EOF`,
			},
		},
		{"directive, end marker and BOM", "a.yaml", "\uFEFF%YAML 1.1\n---\n" + goodService + "...\n# nothing\n---\n---\r\n" + goodSlice, []string{svcWeb, sliceW}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			objects, problems := load(t, tt.file, tt.text)
			if diff := cmp.Diff(tt.lines, lines(problems)); diff != "" {
				t.Errorf("problems mismatch (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.kept, kept(objects)); diff != "" {
				t.Errorf("objects mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLoadDefaults checks what becomes of a Service and a slice that say no more
// than they must.
func TestLoadDefaults(t *testing.T) {
	text := edit(edit(goodService, "clusterIP: 10.96.0.10",
		"type: NodePort\n  sessionAffinity: ClientIP\n  clusterIPs: [10.96.0.10, 'fd00::a']"), "name: http\n    port", "port")
	objects, problems := load(t, "a.yaml", text+"---\n"+edit(goodSlice, "- name: http\n  port", "- port"))
	if len(problems) > 0 {
		t.Fatalf("problems: %v", lines(problems))
	}
	r := resolve.New(resolve.Settings{})
	r.Services.Update(nil, objects[0].(*v1.Service))
	r.Endpoints.Update(objects[1].(*discoveryv1.EndpointSlice), false)
	r.Update()
	const policies = "internal=Cluster external=Cluster"
	want := "default/web/TCP/IPv4 ClusterIP=10.96.0.10:80 " + policies + " anywhere=true cluster=[10.1.0.1:8080] local=[] affinity=3h0m0s\n" +
		"default/web/TCP/IPv6 ClusterIP=[fd00::a]:80 " + policies + " anywhere=false cluster=[] local=[] affinity=3h0m0s\n"
	if diff := cmp.Diff(want, r.State().String()); diff != "" {
		t.Errorf("rows mismatch (-want +got):\n%s", diff)
	}
}

func TestLoadNotes(t *testing.T) {
	_, problems := load(t, "a.yaml", edit(goodSlice, "\n- addresses: [10.1.0.1]", " []")+"---\n"+edit(goodService, "port: 80", "port: 0"))
	if len(problems) != 2 || !problems[0].Note || problems[1].Note {
		t.Errorf("problems are %+v, want a note about the empty slice and no note about the port", problems)
	}
}
