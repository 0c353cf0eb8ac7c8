package conformance

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// The packet cases that service proxies share have Services and EndpointSlices in
// a short form, which these tables and functions translate to the API's: a path in
// the object for each short name. What is in no table stays as it is and is
// refused when it is decoded, like any other unknown field.
var (
	serviceFields = map[string]string{
		"type": "spec.type", "family": "spec.ipFamilies", "ipFamilies": "spec.ipFamilies",
		"clusterIP": "spec.clusterIP", "clusterIPs": "spec.clusterIPs", "externalIPs": "spec.externalIPs",
		"etp": "spec.externalTrafficPolicy", "itp": "spec.internalTrafficPolicy",
		"sourceRanges": "spec.loadBalancerSourceRanges", "lbIngress": "status.loadBalancer.ingress",
		"healthCheckNodePort": "spec.healthCheckNodePort", "ports": "spec.ports",
		"affinity": "spec.sessionAffinityConfig.clientIP",
	}
	affinityFields = map[string]string{"clientIPTimeoutSeconds": "timeoutSeconds"}
	portFields     = map[string]string{"proto": "protocol"}
	endpointFields = map[string]string{
		"node": "nodeName", "ready": "conditions.ready", "serving": "conditions.serving",
		"terminating": "conditions.terminating", "zoneHints": "hints.forZones", "nodeHints": "hints.forNodes",
	}
	comments = []string{"version", "environment", "family", "basis", "upstream_fails", "upstream_note"}
)

type object = map[string]any

// expand replaces what a file has in short and leaves out its comments.
func expand(text []byte) ([]byte, error) {
	var file any
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, err
	}
	return json.Marshal(expandAll("", file, 0))
}

// expandAll expands a value that has a key, or is item i of a list that has.
func expandAll(key string, value any, i int) any {
	switch value := value.(type) {
	case []any:
		for i := range value {
			value[i] = expandAll(key, value[i], i)
		}
	case object:
		switch {
		case value["metadata"] != nil:
		case key == "services":
			return expandService(value)
		case key == "slices":
			return expandSlice(value, i)
		default:
			for _, c := range comments {
				delete(value, c)
			}
			for k := range value {
				value[k] = expandAll(k, value[k], 0)
			}
		}
	}
	return value
}

// rename moves fields to where a table says they are.
func rename(short object, fields map[string]string) object {
	out := object{}
	for name, value := range short {
		path := []string{name}
		if to, ok := fields[name]; ok {
			path = strings.Split(to, ".")
		}
		if err := unstructured.SetNestedField(out, value, path...); err != nil {
			out[name] = value // decoding says what is wrong with it
		}
	}
	return out
}

// each returns a list with every object in it changed.
func each(list any, change func(object) any) any {
	items, _ := list.([]any)
	for i := range items {
		if o, ok := items[i].(object); ok {
			items[i] = change(o)
		}
	}
	return list
}

func expandPort(short object) any { return rename(short, portFields) }

func expandService(short object) object {
	namespace, name, _ := strings.Cut(fmt.Sprint(short["name"]), "/")
	delete(short, "name")
	each(short["ports"], expandPort)
	if f, ok := short["family"]; ok {
		short["family"] = []any{f}
	}
	a, affine := short["affinity"].(object)
	if affine {
		short["affinity"] = rename(a, affinityFields)
	}
	o := rename(short, serviceFields)
	if affine {
		o["spec"].(object)["sessionAffinity"] = "ClientIP"
	}
	o["metadata"] = object{"namespace": namespace, "name": name}
	return o
}

// expandSlice names a slice by its place in the list unless it has a name, and
// gives it the type of its first address.
func expandSlice(short object, i int) object {
	namespace, service, _ := strings.Cut(fmt.Sprint(short["service"]), "/")
	name, ok := short["name"]
	if !ok {
		name = fmt.Sprintf("%s-%d", service, i)
	}
	delete(short, "service")
	delete(short, "name")
	short["metadata"] = object{"namespace": namespace, "name": name, "labels": object{"kubernetes.io/service-name": service}}
	each(short["ports"], expandPort)
	family := "IPv4"
	each(short["endpoints"], func(e object) any {
		extra, _ := e["extra_addresses"].([]any)
		e["addresses"] = append([]any{e["ip"]}, extra...)
		if strings.Contains(fmt.Sprint(e["ip"]), ":") {
			family = "IPv6"
		}
		delete(e, "ip")
		delete(e, "extra_addresses")
		for _, hints := range []any{e["zoneHints"], e["nodeHints"]} {
			list, _ := hints.([]any)
			for i := range list {
				list[i] = object{"name": list[i]}
			}
		}
		return rename(e, endpointFields)
	})
	if short["addressType"] == nil {
		short["addressType"] = family
	}
	return short
}
