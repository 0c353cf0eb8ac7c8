package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/template"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const chartDir = root + "/deploy/helm/sluice"

// chartFile is what we use of Chart.yaml.
type chartFile struct {
	APIVersion  string `json:"apiVersion"`
	Name        string `json:"name"`
	Description string `json:"description"`
	Type        string `json:"type"`
	Version     string `json:"version"`
	AppVersion  string `json:"appVersion"`
}

// chart is a Helm chart, parsed.
type chart struct {
	file      chartFile
	values    map[string]any
	templates *template.Template
}

// openChart parses the chart. It knows the functions that our templates use and
// refuses all others.
func openChart(t *testing.T) *chart {
	t.Helper()
	c := &chart{templates: template.New("chart").Option("missingkey=error")}
	if err := yaml.UnmarshalStrict(contents(t, filepath.Join(chartDir, "Chart.yaml")), &c.file); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(contents(t, filepath.Join(chartDir, "values.yaml")), &c.values); err != nil {
		t.Fatal(err)
	}
	c.templates.Funcs(template.FuncMap{
		"include":   func(name string, data any) (string, error) { return c.execute(name, data) },
		"nindent":   func(n int, s string) string { return "\n" + indent(n, s) },
		"toYaml":    toYAML,
		"quote":     func(v any) string { return strconv.Quote(fmt.Sprint(v)) },
		"default":   func(fallback, v any) any { return or(v, fallback) },
		"required":  required,
		"splitList": func(sep, s string) []string { return strings.Split(s, sep) },
		"last":      func(list []string) string { return list[len(list)-1] },
	})
	if _, err := c.templates.ParseGlob(filepath.Join(chartDir, "templates", "*")); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *chart) execute(name string, data any) (string, error) {
	var b bytes.Buffer
	err := c.templates.ExecuteTemplate(&b, name, data)
	return b.String(), err
}

// render fills in one template as a release into kube-system.
func (c *chart) render(name string) (string, error) {
	return c.execute(name, map[string]any{
		"Values":  c.values,
		"Chart":   c.file,
		"Release": map[string]any{"Name": "sluice", "Namespace": "kube-system", "Service": "Helm"},
	})
}

func indent(n int, s string) string {
	pad := strings.Repeat(" ", n)
	return pad + strings.ReplaceAll(s, "\n", "\n"+pad)
}

func toYAML(v any) (string, error) {
	b, err := yaml.Marshal(v)
	return strings.TrimSuffix(string(b), "\n"), err
}

func or(v, fallback any) any {
	if yes, _ := template.IsTrue(v); yes {
		return v
	}
	return fallback
}

func required(message string, v any) (any, error) {
	if v == nil || v == "" {
		return nil, errors.New(message)
	}
	return v, nil
}

// helm returns the chart's manifests with the one value that has no default,
// and others.
func helm(t *testing.T, values map[string]any) [][]byte {
	t.Helper()
	c := openChart(t)
	c.values["apiServer"] = "https://control-plane.invalid:6443"
	for k, v := range values {
		c.values[k] = v
	}
	var out [][]byte
	for _, tmpl := range c.templates.Templates() {
		if filepath.Ext(tmpl.Name()) != ".yaml" {
			continue
		}
		text, err := c.render(tmpl.Name())
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, []byte(text))
	}
	return out
}

// TestChartIsTheBase wants the same objects of both, but for labels that only
// Helm reads.
func TestChartIsTheBase(t *testing.T) {
	all := releases(t)
	k, h := all["kustomize"], all["helm"]
	for _, m := range []metav1.Object{&h.serviceAccount, &h.binding, &h.configMap, &h.daemonSet} {
		labels := m.GetLabels()
		for _, name := range []string{
			"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart",
		} {
			if labels[name] == "" {
				t.Errorf("%s lacks label %s", m.GetName(), name)
			}
			delete(labels, name)
		}
	}
	for _, r := range all {
		for key, text := range r.configMap.Data {
			r.configMap.Data[key] = plain(t, text)
		}
	}
	if diff := cmp.Diff(*k, *h, cmp.AllowUnexported(release{})); diff != "" {
		t.Errorf("the chart differs (-kustomize +helm):\n%s", diff)
	}
}

// plain takes comments and the order of keys out of YAML.
func plain(t *testing.T, text string) string {
	t.Helper()
	var v any
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	out, err := toYAML(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestChartValues changes every value and looks for it in the objects.
func TestChartValues(t *testing.T) {
	c := openChart(t)
	config := c.values["config"].(map[string]any)
	config["healthzBindAddress"] = "[::]:1234"
	values := map[string]any{
		"image":            map[string]any{"repository": "registry.example/sluice", "tag": "v1", "pullPolicy": "Always"},
		"imagePullSecrets": []any{map[string]any{"name": "pull"}},
		"apiServer":        "https://192.0.2.1:6443",
		"config":           config,
		"extraArgs":        []any{"-v=2"},
		"resources":        map[string]any{"requests": map[string]any{"cpu": "1"}},
		"maxUnavailable":   3,
		"nodeSelector":     map[string]any{"role": "edge"},
		"tolerations":      []any{map[string]any{"key": "edge", "operator": "Exists"}},
	}
	for name := range c.values {
		if _, ok := values[name]; !ok {
			t.Errorf("value %s is not tested", name)
		}
	}
	r := read(t, helm(t, values))
	pod, daemon := r.daemonSet.Spec.Template.Spec, r.daemon()
	for what, holds := range map[string]bool{
		"image":            daemon.Image == "registry.example/sluice:v1" && r.initial().Image == daemon.Image,
		"pull policy":      daemon.ImagePullPolicy == corev1.PullAlways && r.initial().ImagePullPolicy == corev1.PullAlways,
		"imagePullSecrets": len(pod.ImagePullSecrets) == 1 && pod.ImagePullSecrets[0].Name == "pull",
		"apiServer":        strings.Contains(r.configMap.Data["kubeconfig.conf"], "server: https://192.0.2.1:6443\n"),
		"config":           configuration(t, r).HealthzBindAddress == "[::]:1234" && daemon.Ports[0].ContainerPort == 1234,
		"extraArgs":        slices.Contains(daemon.Args, "-v=2") && slices.Contains(r.initial().Args, "-v=2"),
		"resources":        daemon.Resources.Requests.Cpu().Value() == 1,
		"maxUnavailable":   r.daemonSet.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue() == 3,
		"nodeSelector":     pod.NodeSelector["role"] == "edge",
		"tolerations":      len(pod.Tolerations) == 1 && pod.Tolerations[0].Key == "edge",
	} {
		if !holds {
			t.Errorf("value %s does not arrive", what)
		}
	}
}

// TestChartAsksForTheAPIServer wants no chart without it.
func TestChartAsksForTheAPIServer(t *testing.T) {
	_, err := openChart(t).render("configmap.yaml")
	if err == nil || !strings.Contains(err.Error(), "apiServer: say how nodes reach the API server") {
		t.Errorf("error %v", err)
	}
}

// TestChartNotes renders what Helm prints.
func TestChartNotes(t *testing.T) {
	text, err := openChart(t).render("NOTES.txt")
	if err != nil || !strings.Contains(text, "http://127.0.0.1:10256/healthz") {
		t.Errorf("error %v in\n%s", err, text)
	}
}

// schema is what we use of JSON schema to describe values.
type schema struct {
	Type       any               `json:"type"`
	Additional any               `json:"additionalProperties"`
	Properties map[string]schema `json:"properties"`
}

// TestChartSchema wants every value described, with its type.
func TestChartSchema(t *testing.T) {
	var s schema
	if err := json.Unmarshal(contents(t, filepath.Join(chartDir, "values.schema.json")), &s); err != nil {
		t.Fatal(err)
	}
	if s.Additional != false {
		t.Error("unknown values are allowed")
	}
	s.describes(t, "values", openChart(t).values)
	for name := range s.Properties {
		if _, ok := openChart(t).values[name]; !ok && name != "global" { // Helm adds that one itself.
			t.Errorf("the schema describes %s, which is no value", name)
		}
	}
}

func (s schema) describes(t *testing.T, path string, v any) {
	t.Helper()
	var kind string
	switch v := v.(type) {
	case string:
		kind = "string"
	case float64:
		kind = "integer"
	case []any:
		kind = "array"
	case map[string]any:
		kind = "object"
		for name, below := range v {
			if of, ok := s.Properties[name]; ok {
				of.describes(t, path+"."+name, below)
			} else if len(s.Properties) > 0 {
				t.Errorf("the schema lacks %s.%s", path, name)
			}
		}
	default:
		t.Errorf("%s is a %T", path, v)
	}
	if several, ok := s.Type.([]any); s.Type != kind && (!ok || !slices.Contains(several, any(kind))) {
		t.Errorf("%s is of type %v in the schema, and %s in values.yaml", path, s.Type, kind)
	}
}
