package resolve

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/proxy"
)

// singular is the index of a ClusterIP that came from no list.
const singular = -1

// addressField returns the path of a frontend's address in its Service.
func addressField(k proxy.Kind, index int) string {
	switch k {
	case proxy.ClusterIP:
		if index == singular {
			return "spec.clusterIP"
		}
		return indexed("spec.clusterIPs", index, "")
	case proxy.LoadBalancer:
		return indexed("status.loadBalancer.ingress", index, ".ip")
	case proxy.ExternalIP:
		return indexed("spec.externalIPs", index, "")
	case proxy.NodePort:
		return indexed("spec.ports", index, ".nodePort")
	default:
		panic(fmt.Sprintf("unknown kind %d", uint8(k)))
	}
}

// addresses returns the Service's addresses of each family. An address that is
// named twice counts as the kind that comes first.
func (r *serviceReader) addresses() (v4, v6 []address) {
	var out [len(proxy.Families)][]address
	r.clusterIPs(&out)
	for i, in := range r.obj.Status.LoadBalancer.Ingress {
		// A load balancer in proxy mode must see the traffic itself.
		if in.IP == "" || in.IPMode != nil && *in.IPMode != v1.LoadBalancerIPModeVIP {
			continue
		}
		r.address(&out, in.IP, address{kind: proxy.LoadBalancer, index: i})
	}
	if r.ignoreExternalIPs {
		return out[proxy.IPv4], out[proxy.IPv6]
	}
	for i, ip := range r.obj.Spec.ExternalIPs {
		r.address(&out, ip, address{kind: proxy.ExternalIP, index: i})
	}
	return out[proxy.IPv4], out[proxy.IPv6]
}

// clusterIPs reads one ClusterIP for each family that has one.
func (r *serviceReader) clusterIPs(out *[len(proxy.Families)][]address) {
	spec := &r.obj.Spec
	for i, ip := range spec.ClusterIPs {
		if ip != "" && (i < len(spec.IPFamilies) || len(spec.IPFamilies) == 0) {
			r.clusterIP(out, ip, i)
		}
	}
	switch {
	case len(spec.ClusterIPs) > 0:
	case spec.ClusterIP != "":
		r.clusterIP(out, spec.ClusterIP, singular)
	default:
		r.add(addressField(proxy.ClusterIP, singular), "empty: nothing is forwarded")
	}
}

// clusterIP adds a ClusterIP. It must be of the family at its index, if the
// Service lists families.
func (r *serviceReader) clusterIP(out *[len(proxy.Families)][]address, ip string, index int) {
	a, err := parseAddr(ip)
	if families := r.obj.Spec.IPFamilies; err == nil && len(families) > 0 {
		err = isOf(a, families[max(index, 0)])
	}
	if err != nil {
		r.add(addressField(proxy.ClusterIP, index), "%v", err)
		return
	}
	if f := proxy.FamilyOf(a); len(out[f]) == 0 {
		out[f] = []address{{addr: a.Unmap(), kind: proxy.ClusterIP, index: index}}
	}
}

// isOf returns an error unless an address is of a family.
func isOf(a netip.Addr, family v1.IPFamily) error {
	f, err := parseFamily(string(family))
	switch {
	case err != nil:
		return fmt.Errorf("its family %q is %w", family, err)
	case proxy.FamilyOf(a) != f:
		return fmt.Errorf("%v is not an %v address", a, f)
	}
	return nil
}

// address adds one more address if its family has rows.
func (r *serviceReader) address(out *[len(proxy.Families)][]address, ip string, as address) {
	a, err := parseAddr(ip)
	if err != nil {
		r.add(addressField(as.kind, as.index), "%v", err)
		return
	}
	f := proxy.FamilyOf(a)
	as.addr = a.Unmap()
	known := slices.ContainsFunc(out[f], func(o address) bool { return o.addr == as.addr })
	if len(out[f]) > 0 && !known {
		out[f] = append(out[f], as)
	}
}
