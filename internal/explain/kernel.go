package explain

import (
	"errors"
	"net/netip"
	"slices"

	"sluice/internal/proxy"
	"sluice/internal/statusapi"
)

// NoServiceFound reports whether the destination is an address of no Service that is served
// here, or a Service without an address. Services that are not served here may then
// change the answer.
func (a *Answer) NoServiceFound() bool {
	return slices.Contains([]statusapi.Reason{statusapi.NoSuchFrontend, statusapi.UnallocatedAddress, statusapi.Headless}, a.Reason)
}

// Inspection returns what to read back from the kernel, and false if there is
// nothing to read. If no row decides about the packet, it is what all rows of the
// family share.
func (a *Answer) Inspection() (proxy.Inspection, bool) {
	if a.Row == nil {
		return proxy.Inspection{Row: proxy.PortKey{Family: proxy.FamilyOf(a.Packet.Dst.Addr())}}, a.Packet.Dst.IsValid()
	}
	return proxy.Inspection{Row: a.Row.Key, List: a.list, Client: a.Packet.Src}, true
}

// IsCandidate reports whether new connections of the client may go to an endpoint.
func (a *Answer) IsCandidate(endpoint netip.AddrPort) bool {
	return a.Row != nil && slices.ContainsFunc(a.Row.List(a.list), func(e proxy.Endpoint) bool { return e.Addr == endpoint })
}

// Compare adds the result of reading back the kernel to the explanation.
func (a *Answer) Compare(is proxy.Inspected, err error) {
	k := &a.Kernel
	switch {
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, proxy.ErrNeedSync):
		k.State, k.Why = statusapi.KernelNotChecked, err.Error()
	case err != nil:
		k.State, k.Why = statusapi.KernelFailed, err.Error()
	case len(is.Differences) > 0:
		k.State, k.Why = statusapi.KernelDiffers, ""
		a.Try = append(a.Try, "the daemon repairs rules at once, other objects usually within half a minute; nft monitor shows who changes rules")
	default:
		k.State, k.Why = statusapi.KernelAgrees, ""
	}
	if err != nil {
		return
	}
	k.Objects, k.Unread = is.Objects, is.Unread
	k.Differing = len(is.Differences)
	for _, d := range is.Differences[:min(len(is.Differences), maxListed)] {
		k.Differences = append(k.Differences, statusapi.KernelDifference(d))
	}
	if a.Affinity != nil {
		a.Affinity.Unknown = is.RememberedUnknown
		if is.Remembered.IsValid() {
			a.Affinity.Endpoint = is.Remembered.String()
		}
	}
}
