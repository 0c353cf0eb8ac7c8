package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TestChartLints asks Helm's own linter.
func TestChartLints(t *testing.T) {
	for _, m := range lint.RunAll(chartDir, set(t, "apiServer=https://192.0.2.1:6443"), metav1.NamespaceSystem).Messages {
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
}

// TestChartIsTheBase wants the same objects of both, but for what only Helm
// reads, and for how a change reaches the pods: by checksums here, by the
// ConfigMap's name there.
func TestChartIsTheBase(t *testing.T) {
	for mode, all := range map[string]map[string]*release{
		"nftables": releases(t), "iptables": in(t, "iptables"), "ebpf": in(t, "ebpf"), "status": withStatus(t), "windows": withWindows(t),
	} {
		t.Run(mode, func(t *testing.T) {
			k, h := all["kustomize"], all["helm"]
			for _, m := range []metav1.Object{
				&h.serviceAccount, &h.binding, &h.configMap, &h.daemonSet, &h.delegation, &h.statusReader, &h.windows,
			} {
				labels := m.GetLabels()
				if m.GetName() == "" {
					continue
				}
				for _, name := range []string{
					"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart",
				} {
					if labels[name] == "" {
						t.Errorf("%s lacks label %s", m.GetName(), name)
					}
					delete(labels, name)
				}
			}
			h.daemonSet.Spec.Template.Annotations, h.windows.Spec.Template.Annotations = nil, nil
			for i := range k.windows.Spec.Template.Spec.Volumes {
				k.windows.Spec.Template.Spec.Volumes[i].ConfigMap.Name = h.configMap.Name
			}
			k.configMap.Name, k.volume("config").ConfigMap.Name = h.configMap.Name, h.configMap.Name
			for _, r := range all {
				for key, text := range r.configMap.Data {
					r.configMap.Data[key] = plain(t, text)
				}
				slices.SortFunc(r.daemon().Ports, func(a, b corev1.ContainerPort) int { return strings.Compare(a.Name, b.Name) })
				for _, c := range []*corev1.Container{r.initial(), r.daemon()} {
					slices.SortFunc(c.VolumeMounts, func(a, b corev1.VolumeMount) int { return strings.Compare(a.Name, b.Name) })
				}
				slices.SortFunc(r.pod().Volumes, func(a, b corev1.Volume) int { return strings.Compare(a.Name, b.Name) })
			}
			if diff := cmp.Diff(*k, *h, cmp.AllowUnexported(release{})); diff != "" {
				t.Errorf("the chart differs (-kustomize +helm):\n%s", diff)
			}
		})
	}
}

// plain takes comments and the order of keys out of YAML.
func plain(t *testing.T, text string) string {
	t.Helper()
	var v any
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	out, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// everyValue is no value's default.
const everyValue = `
apiServer: https://192.0.2.1:6443
nameOverride: other
fullnameOverride: "123"
image: {repository: registry.example/sluice, tag: v1, digest: "", pullPolicy: Always}
imagePullSecrets: [{name: pull}]
config:
  mode: ""
  healthzBindAddress: "[2001:db8::1]:1234"
  metricsBindAddress: "0.0.0.0:1235"
  conntrack: {min: 1048576}
ebpf: {cgroupRoot: /sys/fs/cgroup/unified}
status: {bindAddress: "[2001:db8::1]:1236", tlsSecret: status}
windows:
  enabled: true
  image: {repository: registry.example/sluice-windows, tag: v2, digest: ""}
  winkernel: {networkName: pods, sourceVip: 10.244.1.2, enableDSR: true}
  extraArgs: [-v=3]
  nodeSelector: {system: windows}
seccompProfile: {type: Localhost, localhostProfile: sluice.json}
extraArgs: [-v=2]
extraEnv: [{name: HTTPS_PROXY, value: "http://proxy:3128"}]
extraVolumes: [{name: ca, secret: {secretName: ca}}]
extraVolumeMounts: [{name: ca, mountPath: /etc/ca, readOnly: true}]
resources: {requests: {cpu: "1"}}
updateStrategy: {rollingUpdate: {maxUnavailable: 3}}
priorityClassName: high
podAnnotations: {team: net, checksum/init: mine}
podLabels: {team: net, app.kubernetes.io/name: stolen}
serviceAccount: {annotations: {role: reader}}
nodeSelector: {role: edge}
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: gpu, operator: DoesNotExist}]}]}}}
tolerations: [{key: edge, operator: Exists}]
podMonitor: {enabled: true, labels: {release: prometheus}, interval: 15s, scrapeTimeout: 5s}
prometheusRule: {enabled: true, labels: {release: prometheus}, runbookURL: "https://wiki.example/runbook"}
dashboard: {enabled: true, labels: {grafana: mine}}
`

// TestChartValues changes every value and looks for it in the objects.
func TestChartValues(t *testing.T) {
	given := parsed(t, everyValue)
	for name := range openChart(t).Values {
		if _, ok := given[name]; !ok {
			t.Errorf("value %s is not tested", name)
		}
	}
	r := helm(t, given)
	pod, daemon, initial := r.pod(), r.daemon(), r.initial()
	template := r.daemonSet.Spec.Template
	mine := map[string]string{"app.kubernetes.io/name": "123"}
	ca := &corev1.VolumeMount{Name: "ca", MountPath: "/etc/ca", ReadOnly: true}
	proxy := corev1.EnvVar{Name: "HTTPS_PROXY", Value: "http://proxy:3128"}
	endpoints := r.podMonitor.Spec.PodMetricsEndpoints
	alerts := strings.NewReplacer("docs/runbook.md", "https://wiki.example/runbook", "(sluice|", "(123|").Replace(string(contents(t, alertsFile)))
	for what, holds := range map[string]bool{
		"image":        daemon.Image == "registry.example/sluice:v1" && initial.Image == daemon.Image,
		"pull policy":  daemon.ImagePullPolicy == corev1.PullAlways && initial.ImagePullPolicy == corev1.PullAlways,
		"pull secrets": len(pod.ImagePullSecrets) == 1 && pod.ImagePullSecrets[0].Name == "pull",
		"apiServer":    strings.Contains(plain(t, r.configMap.Data["kubeconfig.conf"]), "server: https://192.0.2.1:6443\n"),
		"fullnameOverride": r.daemonSet.Name == "123" && r.configMap.Name == "123" && r.binding.Name == "123" &&
			r.serviceAccount.Name == "123" && pod.ServiceAccountName == "123" && r.podMonitor.Name == "123",
		"selectors": cmp.Equal(r.daemonSet.Spec.Selector.MatchLabels, mine),
		"health":    configuration(t, r).HealthzBindAddress == "[2001:db8::1]:1234" && daemon.Ports[0].ContainerPort == 1234,
		"metrics": len(daemon.Ports) == 3 && daemon.Ports[1] == corev1.ContainerPort{
			Name: "metrics", ContainerPort: 1235, HostPort: 1235,
		},
		"status": daemon.Ports[2] == corev1.ContainerPort{Name: "status", ContainerPort: 1236, HostPort: 1236} &&
			slices.Contains(daemon.Args, "--status-bind-address=[2001:db8::1]:1236") &&
			!slices.Contains(initial.Args, "--status-bind-address=[2001:db8::1]:1236") &&
			r.volume("status-tls").Secret.SecretName == "status" &&
			r.statusReader.Name == "123-status-reader" && r.delegation.Name == "123-auth-delegator",
		"conntrack":         *configuration(t, r).Conntrack.Min == 1048576,
		"seccompProfile":    *pod.SecurityContext.SeccompProfile.LocalhostProfile == "sluice.json",
		"extraArgs":         slices.Contains(daemon.Args, "-v=2") && slices.Contains(initial.Args, "-v=2"),
		"extraEnv":          slices.Contains(daemon.Env, proxy) && slices.Contains(initial.Env, proxy) && len(daemon.Env) == 2,
		"extraVolumes":      slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "ca" && v.Secret.SecretName == "ca" }),
		"extraVolumeMounts": cmp.Equal(mount(daemon, "ca"), ca) && cmp.Equal(mount(initial, "ca"), ca),
		"resources":         daemon.Resources.Requests.Cpu().Value() == 1,
		"updateStrategy":    r.daemonSet.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue() == 3,
		"priorityClassName": pod.PriorityClassName == "high",
		"podAnnotations":    template.Annotations["team"] == "net" && len(template.Annotations["checksum/init"]) == 64,
		"podLabels":         template.Labels["team"] == "net" && template.Labels["app.kubernetes.io/name"] == "123",
		"serviceAccount":    r.serviceAccount.Annotations["role"] == "reader",
		"nodeSelector":      pod.NodeSelector["role"] == "edge",
		"affinity": pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].
			MatchExpressions[0].Key == "gpu",
		"tolerations": len(pod.Tolerations) == 1 && pod.Tolerations[0].Key == "edge",
		"podMonitor": len(endpoints) == 1 && *endpoints[0].Port == "metrics" && endpoints[0].Interval == "15s" &&
			endpoints[0].ScrapeTimeout == "5s" && r.podMonitor.Labels["release"] == "prometheus",
		"prometheusRule": r.prometheusRule.Name == "123" && r.prometheusRule.Labels["release"] == "prometheus" &&
			cmp.Equal(r.prometheusRule.Spec, ruleSpec(t, alerts)),
		"dashboard": r.dashboard.Name == "123-dashboard" && r.dashboard.Labels["grafana"] == "mine" &&
			r.dashboard.Data["sluice.json"] == strings.TrimSpace(string(contents(t, dashboardFile))),
	} {
		if !holds {
			t.Errorf("value %s does not arrive", what)
		}
	}
}

// TestPodMonitorSelects wants the pods of both systems to be asked, and nobody else's.
func TestPodMonitorSelects(t *testing.T) {
	said := []string{"podMonitor.enabled=true", "config.metricsBindAddress=0.0.0.0:10249", "windows.winkernel.networkName=Calico"}
	for _, windows := range []bool{false, true} {
		r := helm(t, set(t, append(said, fmt.Sprintf("windows.enabled=%t", windows))...))
		selector, err := metav1.LabelSelectorAsSelector(&r.podMonitor.Spec.Selector)
		if err != nil {
			t.Fatal(err)
		}
		other := map[string]string{"app.kubernetes.io/name": "sluice-edge"}
		for _, tt := range []struct {
			labels map[string]string
			want   bool
		}{{r.daemonSet.Spec.Template.Labels, true}, {r.windows.Spec.Template.Labels, windows}, {other, false}} {
			if got := selector.Matches(labelSet(tt.labels)); got != tt.want {
				t.Errorf("with Windows nodes: %t: %v selects %v: %t", windows, selector, tt.labels, got)
			}
		}
	}
}

// ruleSpec decodes a rule file as the operator does.
func ruleSpec(t *testing.T, text string) (spec monitoringv1.PrometheusRuleSpec) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

// TestMonitoringIsAskedFor wants nothing that needs an operator unless somebody
// says so.
func TestMonitoringIsAskedFor(t *testing.T) {
	if r := helm(t, nil); r.podMonitor.Name+r.prometheusRule.Name+r.dashboard.Name != "" {
		t.Errorf("there are %q, %q and %q", r.podMonitor.Name, r.prometheusRule.Name, r.dashboard.Name)
	}
	r := helm(t, set(t, "prometheusRule.enabled=true", "dashboard.enabled=true"))
	if r.dashboard.Labels["grafana_dashboard"] != "1" || !cmp.Equal(r.prometheusRule.Spec, ruleSpec(t, string(contents(t, alertsFile)))) {
		t.Errorf("the dashboard's labels are %v, the alerts %v", r.dashboard.Labels, r.prometheusRule.Spec)
	}
}

// TestChartImage wants a digest to win over a tag, and a tag over the chart's
// version.
func TestChartImage(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0", 64)
	for want, given := range map[string]values{
		"sluice:latest":          nil,
		"sluice:latest-iptables": set(t, "config.mode=iptables"),
		"sluice:v2":              set(t, "config.mode=iptables,image.tag=v2"),
		"sluice:1.20":            set(t, "image.tag=1.20"),
		"r:5000/s:v1":            set(t, "image.repository=r:5000/s,image.tag=v1"),
		"sluice@" + digest:       set(t, "image.digest="+digest),
		"r.example@" + digest:    set(t, "image.repository=r.example,image.tag=v1,image.digest="+digest),
	} {
		if r := helm(t, given); r.daemon().Image != want || r.initial().Image != want {
			t.Errorf("images %q and %q, want %q", r.initial().Image, r.daemon().Image, want)
		}
	}
}

// TestChartReachesRunningPods wants the pods exchanged for what they do not
// follow, and for nothing else.
func TestChartReachesRunningPods(t *testing.T) {
	before := helm(t, nil).daemonSet.Spec.Template
	tests := []struct {
		set       string
		exchanged bool
	}{
		{"apiServer=https://192.0.2.1:6443", true},
		{"config.conntrack.maxPerCore=1", true},
		{"config.conntrack.tcpEstablishedTimeout=1h", true},
		{"config.iptables.localhostNodePorts=false", true},
		{"config.nodePortAddresses={127.0.0.0/8}", true},
		{"config.featureGates.KubeProxyNFTablesLocalhostNodePorts=true", true},
		{"config.mode=iptables", true},
		{"config.healthzBindAddress=0.0.0.0:1", true},
		{"config.clusterCIDR=10.244.0.0/16", false},
		{"config.logging.verbosity=4", false},
		{"config.iptables.masqueradeAll=true", false},
		{"podMonitor.labels.a=b", false},
	}
	for _, tt := range tests {
		after := helm(t, set(t, tt.set)).daemonSet.Spec.Template
		if changed := !cmp.Equal(before, after); changed != tt.exchanged {
			t.Errorf("--set %s: the pods are exchanged: %t, want %t", tt.set, changed, tt.exchanged)
		}
	}
}

// TestTwoReleases wants no object and no pod of one to be taken for the other's.
func TestTwoReleases(t *testing.T) {
	open := []string{"status.bindAddress=0.0.0.0:10246", "status.tlsSecret=tls"}
	a, b := helm(t, set(t, open...)), helm(t, set(t, append(open, "nameOverride=edge", "nodeSelector.pool=edge")...))
	for _, pair := range [][2]metav1.Object{
		{&a.serviceAccount, &b.serviceAccount},
		{&a.binding, &b.binding},
		{&a.configMap, &b.configMap},
		{&a.daemonSet, &b.daemonSet},
		{&a.delegation, &b.delegation},
		{&a.statusReader, &b.statusReader},
	} {
		if pair[0].GetName() == pair[1].GetName() {
			t.Errorf("both have %T %s", pair[0], pair[0].GetName())
		}
	}
	for _, pair := range [][2]*release{{a, b}, {b, a}} {
		selector, err := metav1.LabelSelectorAsSelector(pair[0].daemonSet.Spec.Selector)
		if err != nil {
			t.Fatal(err)
		}
		if selector.Matches(labelSet(pair[1].daemonSet.Spec.Template.Labels)) {
			t.Errorf("%v selects pods with %v", selector, pair[1].daemonSet.Spec.Template.Labels)
		}
	}
	if b.volume("config").ConfigMap.Name != "edge" || b.binding.Subjects[0].Name != "edge" {
		t.Error("the second release uses what the first one has")
	}
}

// labelSet is labels to match against.
type labelSet map[string]string

func (l labelSet) Has(name string) bool              { _, ok := l[name]; return ok }
func (l labelSet) Get(name string) string            { return l[name] }
func (l labelSet) Lookup(name string) (string, bool) { v, ok := l[name]; return v, ok }

// TestChartQuotes hands it strings that are something else without quotes.
func TestChartQuotes(t *testing.T) {
	hostile := "\"quoted\"\nlines: [1]\n  # {{ .Values }} 'x' \t\\ & *a"
	given := values{
		"nameOverride":      "1e3",
		"podAnnotations":    values{"a": hostile, "b": "true", "c": ""},
		"podLabels":         values{"yes": "no"},
		"serviceAccount":    values{"annotations": values{"a": hostile}},
		"extraEnv":          []any{values{"name": "A", "value": hostile}},
		"extraArgs":         []any{hostile},
		"priorityClassName": "0",
		"nodeSelector":      values{"x": "null"},
		"apiServer":         "https://[2001:db8::1]:6443/#{a:b}",
		"config":            values{"hostnameOverride": hostile},
	}
	r := helm(t, given)
	if err := r.check(); err != nil {
		t.Error(err)
	}
	for what, got := range map[string]string{
		"annotation": r.daemonSet.Spec.Template.Annotations["a"], "account": r.serviceAccount.Annotations["a"],
		"variable": r.daemon().Env[0].Value, "argument": r.daemon().Args[len(r.daemon().Args)-1],
		"configuration": configuration(t, r).HostnameOverride,
	} {
		if got != hostile {
			t.Errorf("%s is %q, want %q", what, got, hostile)
		}
	}
	if r.daemonSet.Name != "1e3" || r.pod().PriorityClassName != "0" || r.pod().NodeSelector["x"] != "null" ||
		r.daemonSet.Spec.Template.Labels["yes"] != "no" {
		t.Errorf("a string has become something else: %+v", r.daemonSet)
	}
	if got := plain(t, r.configMap.Data["kubeconfig.conf"]); !strings.Contains(got, "server: https://[2001:db8::1]:6443/#{a:b}\n") {
		t.Errorf("the kubeconfig is\n%s", got)
	}
}

// TestWrongValues wants each refused, with a word about which and why.
func TestWrongValues(t *testing.T) {
	tests := []struct {
		values string // YAML
		want   []string
	}{
		{`apiServer: ""`, []string{"apiServer: say how nodes reach the API server"}},
		{`apiServer: 10.0.0.10:6443`, []string{"/apiServer", "does not match pattern"}},
		{`apiServer: "https://a\n    insecure-skip-tls-verify: true"`, []string{"/apiServer"}},
		{`mode: iptables`, []string{"additional properties 'mode' not allowed"}},
		{`maxUnavailable: 1`, []string{"additional properties 'maxUnavailable' not allowed"}},
		{`config: {mode: ipvs}`, []string{"/config/mode", "'nftables', 'iptables', 'ebpf'"}},
		{`ebpf: {cgroupRoot: unified}`, []string{"/ebpf/cgroupRoot", "does not match pattern"}},
		{`status: {bindAddress: ":10246"}`, []string{"/status/bindAddress", "does not match pattern"}},
		{`status: {bindAddress: "0.0.0.0:10246"}`, []string{"status.tlsSecret: other hosts reach status.bindAddress"}},
		{`status: {secret: a}`, []string{"/status", "'secret' not allowed"}},
		{`config: {mode: null}`, []string{"/config", "missing property 'mode'"}},
		{`config: {healthzBindAddress: "0.0.0.0"}`, []string{"/config/healthzBindAddress"}},
		{`config: {healthzBindAddress: ":10256"}`, []string{"/config/healthzBindAddress"}},
		{`config: {healthzBindAddress: none}`, []string{"/config/healthzBindAddress"}},
		{`config: {healthzBindAddress: "0.0.0.0:65536"}`, []string{"/config/healthzBindAddress"}},
		{`config: {metricsBindAddress: 10249}`, []string{"/config/metricsBindAddress", "want string"}},
		{`config: {oomScoreAdj: "-997"}`, []string{"/config/oomScoreAdj", "want integer"}},
		{`config: {clientConnection: {kubeconfig: /etc/kubeconfig}}`, []string{"/config/clientConnection/kubeconfig"}},
		{`image: {digest: "sha256:0"}`, []string{"/image/digest", "does not match pattern"}},
		{`image: {tag: 1.20}`, []string{"/image/tag", "want string"}},
		{`image: {repository: "a b"}`, []string{"/image/repository"}},
		{`image: {repo: sluice}`, []string{"/image", "'repo' not allowed"}},
		{`nameOverride: Sluice_1`, []string{"/nameOverride"}},
		{`updateStrategy: {type: Recreate}`, []string{"/updateStrategy/type", "'RollingUpdate', 'OnDelete'"}},
		{`updateStrategy: {rollingUpdate: {maxUnavailable: 0}}`, []string{"/updateStrategy/rollingUpdate/maxUnavailable"}},
		{`updateStrategy: {rollingUpdate: {maxUnavailable: "1"}}`, []string{"/updateStrategy/rollingUpdate/maxUnavailable"}},
		{`updateStrategy: {rollingUpdate: {maxSurge: 1}}`, []string{"'maxSurge' not allowed"}},
		{`podAnnotations: {a: 1}`, []string{"/podAnnotations/a", "want string"}},
		{`podLabels: [a]`, []string{"/podLabels", "want object"}},
		{`tolerations: {}`, []string{"/tolerations", "want array"}},
		{`extraEnv: [{value: a}]`, []string{"/extraEnv/0", "missing property 'name'"}},
		{`extraVolumes: [a]`, []string{"/extraVolumes/0", "want object"}},
		{`podMonitor: {enabled: "yes"}`, []string{"/podMonitor/enabled", "want boolean"}},
		{`podMonitor: {interval: 30}`, []string{"/podMonitor/interval"}},
		{`podMonitor: {enabled: true}`, []string{`nobody but its own node reaches config.metricsBindAddress "127.0.0.1:10249"`}},
		{`{podMonitor: {enabled: true}, config: {metricsBindAddress: none}}`, []string{`config.metricsBindAddress "none"`}},
	}
	for _, tt := range tests {
		v := parsed(t, tt.values)
		if _, ok := v["apiServer"]; !ok {
			v["apiServer"] = "https://192.0.2.1:6443"
		}
		_, err := render(t, "sluice", v)
		for _, want := range tt.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v, want a word about %q", tt.values, err, want)
			}
		}
	}
}

// TestOnDelete wants no part of the other type beside it.
func TestOnDelete(t *testing.T) {
	if got := helm(t, set(t, "updateStrategy.type=OnDelete")).daemonSet.Spec.UpdateStrategy; got.Type != "OnDelete" || got.RollingUpdate != nil {
		t.Errorf("update strategy %+v", got)
	}
}

// TestNullValues takes values away that may be missing.
func TestNullValues(t *testing.T) {
	r := helm(t, parsed(t, "{podLabels: null, podAnnotations: null, affinity: null, extraEnv: null, nodeSelector: null, tolerations: null}"))
	if err := r.check(); err != nil {
		t.Error(err)
	}
}

// TestChartNotes renders what Helm prints.
func TestChartNotes(t *testing.T) {
	tests := []struct{ set, want, never string }{
		{"config.mode=nftables", "curl http://127.0.0.1:10256/healthz\n  nft list table ip sluice", "iptables-save"},
		{"config.mode=iptables", "/healthz\n  iptables-save", "nft list"},
		{"config.mode=ebpf", "/healthz\n  nft list table ip sluice", "iptables-save"},
		{"config.healthzBindAddress=[::]:1", "http://[::1]:1/healthz", ""},
		{"config.healthzBindAddress=192.0.2.1:2", "http://192.0.2.1:2/healthz", ""},
		{"config.healthzBindAddress=[2001:db8::1]:3", "http://[2001:db8::1]:3/healthz", ""},
		{"nameOverride=edge", "daemonset/edge\n", ""},
	}
	for _, tt := range tests {
		files, err := render(t, "sluice", set(t, "apiServer=https://192.0.2.1:6443", tt.set))
		if err != nil {
			t.Fatal(err)
		}
		text := files["NOTES.txt"]
		if !strings.Contains(text, tt.want) || tt.never != "" && strings.Contains(text, tt.never) {
			t.Errorf("--set %s: want %q and not %q in\n%s", tt.set, tt.want, tt.never, text)
		}
	}
}

// TestSchemaKnowsEveryValue wants the schema to name the values that there are,
// and to refuse others.
func TestSchemaKnowsEveryValue(t *testing.T) {
	var schema struct {
		Additional any            `json:"additionalProperties"`
		Properties map[string]any `json:"properties"`
	}
	text, err := os.ReadFile(chartDir + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	if schema.Additional != false {
		t.Error("unknown values are allowed")
	}
	known := openChart(t).Values
	for name := range known {
		if schema.Properties[name] == nil {
			t.Errorf("the schema lacks %s", name)
		}
	}
	for name := range schema.Properties {
		if _, ok := known[name]; !ok && name != "global" { // Helm adds that one itself.
			t.Errorf("the schema describes %s, which is no value", name)
		}
	}
}
