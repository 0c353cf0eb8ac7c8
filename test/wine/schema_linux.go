package wine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"sluice/internal/kernel/hns"
)

// version is the version of the service or of an object's schema.
type version struct{ Major, Minor int }

// versionWith returns a version of the service that has these features.
func versionWith(f hns.Features) version {
	switch {
	case f.ModifyLoadBalancer:
		return version{15, 5}
	case f.SessionAffinity:
		return version{13, 0}
	case f.DualStack:
		return version{11, 10}
	case f.DSR:
		return version{10, 2}
	}
	return version{9, 2}
}

// Objects as the service encodes them. Like Windows, it writes the same ID sometimes in upper case
// and sometimes in lower case.
type (
	network struct {
		ID, Name, Type string
		Policies       []policy
		SchemaVersion  version
	}
	policy struct {
		Type     string
		Settings map[string]any
	}
	endpoint struct {
		ID, Name, HostComputeNetwork string `json:",omitempty"`
		Policies                     []policy
		IpConfigurations             []struct{ IpAddress string }
		MacAddress                   string `json:",omitempty"`
		Flags                        uint32
		SchemaVersion                version
	}
	loadBalancer struct {
		ID                   string `json:",omitempty"`
		HostComputeEndpoints []string
		SourceVIP            string   `json:",omitempty"`
		FrontendVIPs         []string `json:",omitempty"`
		PortMappings         []portMapping
		SchemaVersion        version
		Flags                uint32
	}
	portMapping struct {
		Protocol, DistributionType, Flags uint32
		InternalPort, ExternalPort        uint16
	}
)

func networkOf(n hns.Network) network {
	theirs := network{ID: strings.ToUpper(n.ID), Name: n.Name, Type: n.Type, SchemaVersion: version{2, 0}}
	for _, r := range n.Remote {
		theirs.Policies = append(theirs.Policies, policy{"RemoteSubnetRoute", map[string]any{
			"DestinationPrefix": r.Prefix, "IsolationId": 4096, "ProviderAddress": r.Provider, "DistributedRouterMacAddress": "00-15-5D-00-00-02",
		}})
	}
	return theirs
}

const remoteFlag = 1

func endpointOf(id string, e hns.Endpoint) endpoint {
	theirs := endpoint{ID: strings.ToUpper(id), Name: e.Name, HostComputeNetwork: e.Network, MacAddress: e.MAC, SchemaVersion: version{2, 0}}
	for _, a := range e.Addrs {
		theirs.IpConfigurations = append(theirs.IpConfigurations, struct{ IpAddress string }{a.String()})
	}
	if e.Remote {
		theirs.Flags = remoteFlag
	}
	if e.Provider.IsValid() {
		theirs.Policies = []policy{{"ProviderAddress", map[string]any{"ProviderAddress": e.Provider}}}
	}
	return theirs
}

func (e endpoint) ours() hns.Endpoint {
	ours := hns.Endpoint{Network: strings.ToLower(e.HostComputeNetwork), Name: e.Name, MAC: e.MacAddress, Remote: e.Flags&remoteFlag != 0}
	for _, c := range e.IpConfigurations {
		if a, err := netip.ParseAddr(c.IpAddress); err == nil {
			ours.Addrs = append(ours.Addrs, a)
		}
	}
	for _, p := range e.Policies {
		if a, err := netip.ParseAddr(fmt.Sprint(p.Settings["ProviderAddress"])); err == nil && p.Type == "ProviderAddress" {
			ours.Provider = a
		}
	}
	return ours
}

// The flags of a load balancer and of its port, and the distribution by client address.
const (
	dsrFlag      = 1
	ipv6Flag     = 2
	distribution = 2
)

var portFlags = []hns.Flags{hns.ILB, hns.LocalRoutedVIP, hns.UseMux, hns.PreserveDIP, hns.ExternalVIP}

func loadBalancerOf(id string, l hns.LoadBalancer) loadBalancer {
	port := portMapping{Protocol: uint32(l.Protocol), InternalPort: l.InternalPort, ExternalPort: l.ExternalPort}
	for i, f := range portFlags {
		if l.Flags&f != 0 {
			port.Flags |= 1 << i
		}
	}
	if l.Flags&hns.ByClient != 0 {
		port.DistributionType = distribution
	}
	theirs := loadBalancer{ID: strings.ToUpper(id), HostComputeEndpoints: l.Endpoints, PortMappings: []portMapping{port}, SchemaVersion: version{2, 0}}
	if l.VIP.IsValid() {
		theirs.FrontendVIPs = []string{l.VIP.String()}
	}
	if l.SourceVIP.IsValid() {
		theirs.SourceVIP = l.SourceVIP.String()
	}
	if l.Flags&hns.DSR != 0 {
		theirs.Flags |= dsrFlag
	}
	if l.Family6 {
		theirs.Flags |= ipv6Flag
	}
	return theirs
}

func (l loadBalancer) ours() hns.LoadBalancer {
	ours := hns.LoadBalancer{Family6: l.Flags&ipv6Flag != 0}
	for _, id := range l.HostComputeEndpoints {
		ours.Endpoints = append(ours.Endpoints, strings.ToLower(id))
	}
	if len(l.FrontendVIPs) > 0 {
		ours.VIP, _ = netip.ParseAddr(l.FrontendVIPs[0])
	}
	ours.SourceVIP, _ = netip.ParseAddr(l.SourceVIP)
	if l.Flags&dsrFlag != 0 {
		ours.Flags |= hns.DSR
	}
	if len(l.PortMappings) == 0 {
		return ours
	}
	port := l.PortMappings[0]
	ours.Protocol, ours.InternalPort, ours.ExternalPort = uint8(port.Protocol), port.InternalPort, port.ExternalPort
	for i, f := range portFlags {
		if port.Flags&(1<<i) != 0 {
			ours.Flags |= f
		}
	}
	if port.DistributionType == distribution {
		ours.Flags |= hns.ByClient
	}
	return ours
}

// failure returns an error as Windows does: a code and a JSON text.
func failure(function string, err error) answer {
	code := codeOf(function, err)
	text, _ := json.Marshal(map[string]any{"Success": false, "Error": err.Error(), "ErrorCode": code}) // cannot fail
	if function == "HNSCall" {
		return answer{code: code}
	}
	return answer{code: code, result: string(text)}
}

// codeOf returns the HRESULT of Windows, where it is known.
func codeOf(function string, err error) uint32 {
	switch {
	case errors.Is(err, hns.ErrNotRunning):
		return 0x800706B5 // RPC_S_UNKNOWN_IF
	case errors.Is(err, hns.ErrExists) && function == "HcnCreateEndpoint":
		return 0x803B002F // HCN_E_ADDR_INVALID_OR_RESERVED
	case errors.Is(err, hns.ErrExists):
		return 0x803B0013 // HCN_E_PORT_ALREADY_EXISTS
	case errors.Is(err, hns.ErrNotFound) && strings.HasSuffix(function, "Network"):
		return 0x803B0001 // HCN_E_NETWORK_NOT_FOUND
	case errors.Is(err, hns.ErrNotFound) && (strings.HasSuffix(function, "Endpoint") || function == "HcnCreateLoadBalancer"):
		return 0x803B0002 // HCN_E_ENDPOINT_NOT_FOUND
	case errors.Is(err, hns.ErrNotFound):
		return 0x80070490 // ERROR_NOT_FOUND
	case errors.Is(err, hns.ErrUnsupported):
		return 0x80004001 // E_NOTIMPL
	}
	return 0x80070057 // E_INVALIDARG
}
