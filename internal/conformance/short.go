package conformance

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// fieldPaths maps the short form of Services and EndpointSlices, in which service proxies share
// their packet cases, to the API's fields: by key of the surrounding object, then by short name.
// Other names stay as they are; decoding rejects the unknown ones.
var fieldPaths = map[string]map[string]string{
	"services": {
		"type": "spec.type", "family": "spec.ipFamilies", "ipFamilies": "spec.ipFamilies",
		"clusterIP": "spec.clusterIP", "clusterIPs": "spec.clusterIPs", "externalIPs": "spec.externalIPs",
		"etp": "spec.externalTrafficPolicy", "itp": "spec.internalTrafficPolicy",
		"sourceRanges": "spec.loadBalancerSourceRanges", "lbIngress": "status.loadBalancer.ingress",
		"healthCheckNodePort": "spec.healthCheckNodePort", "ports": "spec.ports",
		"affinity": "spec.sessionAffinityConfig.clientIP", "sessionAffinity": "spec.sessionAffinity",
	},
	"slices":   {},
	"affinity": {"clientIPTimeoutSeconds": "timeoutSeconds"},
	"ports":    {"proto": "protocol"},
	"endpoints": {
		"node": "nodeName", "ready": "conditions.ready", "serving": "conditions.serving",
		"terminating": "conditions.terminating", "zoneHints": "hints.forZones", "nodeHints": "hints.forNodes",
	},
}

// comments are the fields, outside of API objects, that are meant for readers only.
var comments = []string{"version", "environment", "family", "basis", "upstream_fails", "upstream_note", "title", "note"}

type object = map[string]any

// expand converts a file from the short form to the API's form and removes comments.
func expand(text []byte) ([]byte, error) {
	var file any
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, err
	}
	return json.Marshal(expandAll("", file, 0))
}

// expandAll expands the value of a key, or item i of the list that is its value.
func expandAll(key string, value any, i int) any {
	switch value := value.(type) {
	case string:
		if key == "zoneHints" || key == "nodeHints" {
			return object{"name": value}
		}
	case []any:
		for i := range value {
			value[i] = expandAll(key, value[i], i)
		}
	case object:
		if value["metadata"] != nil {
			return value // already in the API's form
		}
		for k := range value {
			value[k] = expandAll(k, value[k], 0)
		}
		return expandObject(key, value, i)
	}
	return value
}

// expandObject moves the fields of an object to their paths in the API.
func expandObject(key string, short object, i int) object {
	switch key {
	case "services":
		namespace, name, _ := strings.Cut(fmt.Sprint(short["name"]), "/")
		delete(short, "name")
		short["metadata"] = object{"namespace": namespace, "name": name}
		if short["family"] != nil {
			short["family"] = []any{short["family"]}
		}
		if short["affinity"] != nil {
			short["sessionAffinity"] = "ClientIP"
		}
	case "slices": // the default name is the index in the list
		namespace, service, _ := strings.Cut(fmt.Sprint(short["service"]), "/")
		name, ok := short["name"]
		if !ok {
			name = fmt.Sprintf("%s-%d", service, i)
		}
		delete(short, "service")
		delete(short, "name")
		labels := object{"kubernetes.io/service-name": service}
		short["metadata"] = object{"namespace": namespace, "name": name, "labels": labels}
	case "endpoints":
		extra, _ := short["extra_addresses"].([]any)
		short["addresses"] = append([]any{short["ip"]}, extra...)
		delete(short, "ip")
		delete(short, "extra_addresses")
	}
	fields, known := fieldPaths[key]
	if !known {
		for _, c := range comments {
			delete(short, c)
		}
	}
	out := object{}
	for name, value := range short {
		path := []string{name}
		if to, ok := fields[name]; ok {
			path = strings.Split(to, ".")
		}
		if err := unstructured.SetNestedField(out, value, path...); err != nil {
			out[name] = value // decoding reports what is wrong
		}
	}
	return out
}
