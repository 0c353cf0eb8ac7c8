package apiobject_test

import (
	"fmt"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/apiobject"
	"sluice/internal/proxy"
)

func TestBalancing(t *testing.T) {
	for text, want := range map[string]proxy.Balancing{
		"random": proxy.Random, "maglev": proxy.Maglev, "": proxy.BalanceDefault, "default": proxy.BalanceDefault, "Random": proxy.BalanceDefault,
	} {
		obj := service(func(*v1.Service) {})
		annotated(obj, apiobject.LoadBalancing, text)
		if got, problems := apiobject.ParseService(obj, apiobject.Allowed{}); got.Balancing != want || (len(problems) == 0) != (want != proxy.BalanceDefault) {
			t.Errorf("%q: %v, problems %v; want %v", text, got.Balancing, problems, want)
		}
	}
}

func TestWeight(t *testing.T) {
	for text, want := range map[string]struct {
		weight uint16
		ok     bool
	}{
		"1": {0, true}, "2": {2, true}, "65535": {65535, true},
		"0": {}, "65536": {}, "-1": {}, "+1": {}, " 1": {}, "1.5": {}, "": {}, "ten": {}, "18446744073709551617": {},
	} {
		obj := slice(func(*discoveryv1.EndpointSlice) {})
		annotated(obj, apiobject.Weight, text)
		got, problems := apiobject.ParseEndpointSlice(obj, func(*discoveryv1.Endpoint, netip.Addr) {})
		if got.Weight != want.weight || (len(problems) == 0) != want.ok {
			t.Errorf("%q: %d, problems %v; want %+v", text, got.Weight, problems, want)
		}
	}
}

// TestCheckOmitsAnnotations: what was reported of a manifest once is not found
// again when the object is resolved.
func TestCheckOmitsAnnotations(t *testing.T) {
	obj := service(func(*v1.Service) {})
	for text, want := range map[string]string{"rr": "map[other:kept]", "random": "map[other:kept sluice.dev/load-balancing:random]"} {
		annotated(obj, apiobject.LoadBalancing, text)
		apiobject.Check(obj)
		if got := fmt.Sprint(obj.Annotations); got != want {
			t.Errorf("%s: annotations %s; want %s", text, got, want)
		}
	}
	slice := slice(func(*discoveryv1.EndpointSlice) {})
	annotated(slice, apiobject.Weight, "much")
	apiobject.Check(slice)
	if got := fmt.Sprint(slice.Annotations); got != "map[other:kept]" {
		t.Errorf("annotations of a slice %s", got)
	}
}
