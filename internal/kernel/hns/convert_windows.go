package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/Microsoft/hnslib/hcn"
)

var version2 = hcn.SchemaVersion{Major: 2}

// idOf returns an ID in lower case: the service writes the same ID in either case.
func idOf(id string) string { return strings.ToLower(id) }

func networkOf(n *hcn.HostComputeNetwork) (Network, error) {
	ours := Network{ID: idOf(n.Id), Name: n.Name, Type: string(n.Type)}
	for _, p := range n.Policies {
		if p.Type != hcn.RemoteSubnetRoute {
			continue
		}
		var s hcn.RemoteSubnetRoutePolicySetting
		err := json.Unmarshal(p.Settings, &s)
		prefix, err2 := netip.ParsePrefix(s.DestinationPrefix)
		provider, err3 := netip.ParseAddr(s.ProviderAddress)
		if err = errors.Join(err, err2, err3); err != nil {
			return Network{}, fmt.Errorf("network %s: remote subnet %s: %w", n.Name, p.Settings, err)
		}
		ours.Remote = append(ours.Remote, RemoteSubnet{Prefix: prefix, Provider: provider})
	}
	return ours, nil
}

func endpointOf(e *hcn.HostComputeEndpoint) (string, Endpoint) {
	ours := Endpoint{Network: idOf(e.HostComputeNetwork), Name: e.Name, MAC: e.MacAddress, Remote: e.Flags&hcn.EndpointFlagsRemoteEndpoint != 0}
	for _, c := range e.IpConfigurations {
		if a, err := netip.ParseAddr(c.IpAddress); err == nil {
			ours.Addrs = append(ours.Addrs, a)
		}
	}
	for _, p := range e.Policies {
		var s hcn.ProviderAddressEndpointPolicySetting
		if p.Type == hcn.NetworkProviderAddress && json.Unmarshal(p.Settings, &s) == nil {
			ours.Provider, _ = netip.ParseAddr(s.ProviderAddress)
		}
	}
	return idOf(e.Id), ours
}

func hcnEndpointOf(e Endpoint) *hcn.HostComputeEndpoint {
	theirs := &hcn.HostComputeEndpoint{HostComputeNetwork: e.Network, Name: e.Name, MacAddress: e.MAC, SchemaVersion: version2}
	for _, a := range e.Addrs {
		theirs.IpConfigurations = append(theirs.IpConfigurations, hcn.IpConfig{IpAddress: a.String()})
	}
	if e.Remote {
		theirs.Flags = hcn.EndpointFlagsRemoteEndpoint
	}
	if e.Provider.IsValid() {
		settings := fmt.Appendf(nil, `{"ProviderAddress":%q}`, e.Provider)
		theirs.Policies = []hcn.EndpointPolicy{{Type: hcn.NetworkProviderAddress, Settings: settings}}
	}
	return theirs
}

// loadBalancerOf converts a load balancer. It leaves protocol and port unset if we could not have
// created it.
func loadBalancerOf(l *hcn.HostComputeLoadBalancer) (string, LoadBalancer) {
	ours := LoadBalancer{Family6: l.Flags&hcn.LoadBalancerFlagsIPv6 != 0, Flags: Flags(l.Flags &^ hcn.LoadBalancerFlagsIPv6)}
	for _, id := range l.HostComputeEndpoints {
		ours.Endpoints = append(ours.Endpoints, idOf(id))
	}
	ours.SourceVIP, _ = netip.ParseAddr(l.SourceVIP)
	ours.VIP, _ = netip.ParseAddr(strings.Join(l.FrontendVIPs, " "))
	if len(l.PortMappings) == 1 && (len(l.FrontendVIPs) == 0 || ours.VIP.IsValid()) {
		port := l.PortMappings[0]
		ours.Protocol, ours.ExternalPort, ours.InternalPort = uint8(port.Protocol), port.ExternalPort, port.InternalPort
		ours.Flags |= Flags(port.Flags)<<8 | Flags(port.DistributionType)<<16
	}
	return idOf(l.Id), ours
}

func hcnLoadBalancerOf(l LoadBalancer) *hcn.HostComputeLoadBalancer {
	source, _ := l.SourceVIP.MarshalText() // empty if it is invalid
	theirs := &hcn.HostComputeLoadBalancer{
		HostComputeEndpoints: l.Endpoints, SourceVIP: string(source), SchemaVersion: version2, Flags: hcn.LoadBalancerFlags(l.Flags & 0xff),
		PortMappings: []hcn.LoadBalancerPortMapping{{
			Protocol: uint32(l.Protocol), ExternalPort: l.ExternalPort, InternalPort: l.InternalPort,
			Flags: hcn.LoadBalancerPortMappingFlags(l.Flags >> 8 & 0xff), DistributionType: hcn.LoadBalancerDistribution(l.Flags >> 16),
		}},
	}
	if l.VIP.IsValid() {
		theirs.FrontendVIPs = []string{l.VIP.String()}
	}
	if l.Family6 {
		theirs.Flags |= hcn.LoadBalancerFlagsIPv6
	}
	return theirs
}
