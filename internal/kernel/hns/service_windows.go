package hns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/Microsoft/hnslib/hcn"
	"golang.org/x/sys/windows"
)

// Service is the Host Networking Service of this node. The requests that hnslib makes for one call:
// a list takes one and three for each object, creating an endpoint five, creating a load balancer
// three, updating it four, and deleting an object one.
type Service struct{}

// libraries are the DLLs that hnslib calls. It panics if one does not exist, so ask checks them
// first.
var libraries = []*windows.LazyDLL{windows.NewLazySystemDLL("computenetwork.dll"), windows.NewLazySystemDLL("vmcompute.dll")}

// Features reads the version at each call: hnslib would remember that the service was not running,
// and logs the features.
func (Service) Features(ctx context.Context) (Features, error) {
	globals, err := ask(ctx, "read the version", hcn.GetGlobals)
	if err != nil {
		return Features{}, err
	}
	v := globals.Version
	if !within(v, hcn.V2ApiSupport) {
		return Features{}, fmt.Errorf("the Host Networking Service has version %d.%d, but 9.2 or later (Windows Server 2019) is needed", v.Major, v.Minor)
	}
	return Features{
		DSR: within(v, hcn.DSRVersion), DualStack: within(v, hcn.IPv6DualStackVersion), RemoteSubnet: within(v, hcn.RemoteSubnetVersion),
		SessionAffinity: within(v, hcn.SessionAffinityVersion), ModifyLoadBalancer: within(v, hcn.ModifyLoadbalancerVersion),
	}, nil
}

func within(v hcn.Version, ranges hcn.VersionRanges) bool {
	compare := func(a, b hcn.Version) int {
		return cmp.Or(cmp.Compare(a.Major, b.Major), cmp.Compare(a.Minor, b.Minor))
	}
	return slices.ContainsFunc(ranges, func(r hcn.VersionRange) bool { return compare(v, r.MinVersion) >= 0 && compare(v, r.MaxVersion) <= 0 })
}

func (Service) Network(ctx context.Context, name string) (Network, error) {
	n, err := ask(ctx, "find network "+name, func() (*hcn.HostComputeNetwork, error) { return hcn.GetNetworkByName(name) })
	if err != nil {
		return Network{}, err
	}
	return networkOf(n)
}

func (Service) Endpoints(ctx context.Context) (map[string]Endpoint, error) {
	return list(ctx, "list endpoints", endpointOf, hcn.ListEndpoints)
}

func (Service) CreateEndpoint(ctx context.Context, e Endpoint) (string, error) {
	created, err := ask(ctx, fmt.Sprintf("create endpoint %v on network %s", e.Addrs, e.Network), hcnEndpointOf(e).Create)
	if err != nil {
		return "", err
	}
	return idOf(created.Id), nil
}

func (Service) DeleteEndpoint(ctx context.Context, id string) error {
	return do(ctx, "delete endpoint "+id, (&hcn.HostComputeEndpoint{Id: id}).Delete)
}

func (Service) LoadBalancers(ctx context.Context) (map[string]LoadBalancer, error) {
	return list(ctx, "list load balancers", loadBalancerOf, hcn.ListLoadBalancers)
}

func (Service) CreateLoadBalancer(ctx context.Context, l LoadBalancer) (string, error) {
	created, err := ask(ctx, fmt.Sprintf("create load balancer %v port %d", l.VIP, l.ExternalPort), hcnLoadBalancerOf(l).Create)
	if err != nil {
		return "", err
	}
	return idOf(created.Id), nil
}

func (Service) UpdateLoadBalancer(ctx context.Context, id string, l LoadBalancer) error {
	return do(ctx, fmt.Sprintf("update load balancer %v port %d, %s", l.VIP, l.ExternalPort, id), func() error {
		_, err := hcnLoadBalancerOf(l).Update(id)
		return err
	})
}

func (Service) DeleteLoadBalancer(ctx context.Context, id string) error {
	return do(ctx, "delete load balancer "+id, (&hcn.HostComputeLoadBalancer{Id: id}).Delete)
}

// list lists objects and converts them. It starts over if an object was deleted meanwhile: hnslib
// first lists IDs and then reads each object.
func list[Theirs, Ours any](ctx context.Context, doing string, convert func(*Theirs) (string, Ours), read func() ([]Theirs, error)) (map[string]Ours, error) {
	theirs, err := ask(ctx, doing, read)
	for tries := 1; errors.Is(err, ErrNotFound); tries++ {
		if tries == 5 {
			return nil, fmt.Errorf("%s: objects were deleted meanwhile, in %d attempts: %v", doing, tries, err) // not %w: to a caller this is not ErrNotFound
		}
		theirs, err = ask(ctx, doing, read)
	}
	if err != nil {
		return nil, err
	}
	all := make(map[string]Ours, len(theirs))
	for i := range theirs {
		id, ours := convert(&theirs[i])
		all[id] = ours
	}
	return all, nil
}

func do(ctx context.Context, doing string, f func() error) error {
	_, err := ask(ctx, doing, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// ask calls f unless the context has ended. Its error names the action, and wraps one of the errors
// that a caller can act on where possible.
func ask[T any](ctx context.Context, doing string, f func() (T, error)) (answer T, err error) {
	for _, l := range libraries {
		if err := l.Load(); err != nil {
			return answer, fmt.Errorf("load %s: %w; check that the Windows feature Containers is installed", l.Name, err)
		}
	}
	if err = ctx.Err(); err == nil {
		answer, err = f()
	}
	if err == nil {
		return answer, nil
	}
	for known, codes := range errorCodes {
		if slices.ContainsFunc(codes, func(c uint32) bool { return strings.Contains(err.Error(), fmt.Sprintf("(%#x)", c)) }) {
			return answer, fmt.Errorf("%s: %w (%w)", doing, known, err)
		}
	}
	if hcn.IsNotFoundError(err) { // a filter matched nothing
		return answer, fmt.Errorf("%s: %w", doing, ErrNotFound)
	}
	return answer, fmt.Errorf("%s: %w", doing, err)
}

// errorCodes are searched for in the error text, where hnslib puts them in all its errors.
var errorCodes = map[error][]uint32{
	ErrNotFound: {
		uint32(windows.ERROR_NOT_FOUND), uint32(windows.HCN_E_NETWORK_NOT_FOUND), uint32(windows.HCN_E_ENDPOINT_NOT_FOUND), uint32(windows.HCN_E_POLICY_NOT_FOUND),
	},
	ErrExists: {
		uint32(windows.ERROR_ALREADY_EXISTS), uint32(windows.HCN_E_PORT_ALREADY_EXISTS), uint32(windows.HCN_E_POLICY_ALREADY_EXISTS),
		uint32(windows.HCN_E_ADDR_INVALID_OR_RESERVED),
	},
	ErrUnsupported: {uint32(windows.E_NOTIMPL)},
	ErrNotRunning: {
		uint32(windows.RPC_S_UNKNOWN_IF), uint32(windows.RPC_S_SERVER_UNAVAILABLE), uint32(windows.HCN_E_MANAGER_STOPPED),
	},
}
