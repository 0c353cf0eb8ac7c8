package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// The type of a configuration file.
const (
	apiVersion = "kubeproxy.config.k8s.io/v1alpha1"
	kind       = "KubeProxyConfiguration"
)

// Decode parses a KubeProxyConfiguration in YAML or JSON. Unknown and duplicate
// fields are warnings instead of errors, so that files for other versions of
// kube-proxy can be used.
func Decode(data []byte) (in Input, warnings []string, err error) {
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		lenient, fatal := yaml.YAMLToJSON(data)
		if fatal != nil {
			return Input{}, nil, fmt.Errorf("neither YAML nor JSON: %w", fatal)
		}
		text, warnings = lenient, append(warnings, yamlWarnings(err)...)
	}
	if err := checkType(text); err != nil {
		return Input{}, nil, err
	}
	strict, err := kjson.UnmarshalStrict(text, &in.Object)
	if err != nil {
		return Input{}, nil, fmt.Errorf("read %s: %w", kind, err)
	}
	for _, s := range strict {
		warnings = append(warnings, s.Error())
	}
	return in, warnings, nil
}

// checkType returns an error unless text is of the supported kind and version.
func checkType(text []byte) error {
	var t metav1.TypeMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &t); err != nil {
		return fmt.Errorf("not a %s: %w", kind, err)
	}
	switch {
	case string(text) == "null":
		return errors.New("the file is empty")
	case t.APIVersion == "" || t.Kind == "":
		return fmt.Errorf("apiVersion %q, kind %q: both must be there, %q and %q", t.APIVersion, t.Kind, apiVersion, kind)
	case t.Kind != kind:
		return fmt.Errorf("kind %q: must be %q", t.Kind, kind)
	case t.APIVersion != apiVersion:
		return fmt.Errorf("apiVersion %q: must be %q", t.APIVersion, apiVersion)
	default:
		return nil
	}
}

// yamlWarnings splits the error of the strict YAML parser into its parts.
func yamlWarnings(err error) []string {
	var out []string
	for line := range strings.Lines(err.Error()) {
		// The first line of several is a heading.
		if line = strings.TrimSpace(line); !strings.HasSuffix(line, ":") {
			if strings.HasSuffix(line, "already set in map") {
				line += ", the last one is used"
			}
			out = append(out, line)
		}
	}
	return out
}

// flatten returns the fields of an object as text, by names like conntrack.min.
func flatten(o *v1alpha1.KubeProxyConfiguration) map[string]string {
	text, err := json.Marshal(o)
	var tree map[string]any
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(text, &tree)
	}
	if err != nil {
		panic("encode a configuration: " + err.Error())
	}
	out := map[string]string{}
	var add func(name string, v any)
	add = func(name string, v any) {
		section, ok := v.(map[string]any)
		if !ok {
			out[name] = fmt.Sprint(v)
		}
		for below, v := range section {
			add(strings.TrimPrefix(name+"."+below, "."), v)
		}
	}
	add("", tree)
	return out
}
