package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// linkName is the link that holds the Service addresses.
const linkName = "kube-ipvs0"

// serviceLink is that link.
type serviceLink struct {
	index int
	addrs []netip.Addr
}

// server is an IPVS virtual server.
type server struct {
	protocol uint8 // IPPROTO_TCP and so on
	addr     netip.AddrPort
}

func (s server) String() string {
	names := map[uint8]string{unix.IPPROTO_TCP: "TCP", unix.IPPROTO_UDP: "UDP", unix.IPPROTO_SCTP: "SCTP"}
	if name := names[s.protocol]; name != "" {
		return name + " " + s.addr.String()
	}
	return fmt.Sprintf("protocol %d %v", s.protocol, s.addr)
}

// errBusy says that a set is in use.
const errBusy = syscall.Errno(nl.IPSET_ERR_BUSY)

// kernel is what the ipvs mode uses of the kernel beside chains.
type kernel interface {
	link() (*serviceLink, error) // nil if there is none
	removeLink(*serviceLink) error
	servers(context.Context) ([]server, error) // none if the kernel has no IPVS
	removeServer(context.Context, server) error
	sets(context.Context) ([]string, error) // of all owners; none if the kernel has no IP sets
	removeSet(ctx context.Context, name string) error
}

// Cleanup removes what kube-proxy's ipvs mode left in the calling thread's
// network namespace, but for its chains, which must be gone before. It returns
// what it removed, and goes on after an error.
func Cleanup(ctx context.Context) (removed []string, err error) { return cleanup(ctx, netlinkKernel{}) }

func cleanup(ctx context.Context, k kernel) ([]string, error) {
	removed, err := removeLink(ctx, k)
	sets, failed := removeSets(ctx, k)
	return append(removed, sets...), errors.Join(err, failed)
}

// removeLink removes the link, after the virtual servers at its addresses.
// Those at other addresses may be anybody's.
func removeLink(ctx context.Context, k kernel) (removed []string, err error) {
	link, err := k.link()
	if link == nil {
		return nil, err
	}
	servers, err := k.servers(ctx)
	others := 0
	for _, s := range servers {
		if !slices.Contains(link.addrs, s.addr.Addr()) {
			others++
			continue
		}
		failed := k.removeServer(ctx, s)
		switch {
		case failed == nil:
			removed = append(removed, "IPVS virtual server "+s.String())
		case !errors.Is(failed, unix.ESRCH): // else another process was faster
			err = errors.Join(err, fmt.Errorf("remove IPVS virtual server %v: %w", s, failed))
		}
	}
	if others > 0 {
		plural := ""
		if others > 1 {
			plural = "s"
		}
		removed = append(removed, fmt.Sprintf("left alone: %d IPVS virtual server%s at addresses that are not on link %s "+
			"(kube-proxy's node ports among them cannot be told from other programs' servers)", others, plural, linkName))
	}
	if failed := k.removeLink(link); failed != nil {
		return removed, errors.Join(err, fmt.Errorf("remove link %s: %w", linkName, failed))
	}
	return append(removed, "link "+linkName+" and its addresses"), err
}

const (
	// setWait bounds the wait for the kernel to let go of sets: nf_tables may
	// free deleted rules, and what they refer to, a little later.
	setWait = 2 * time.Second
	setPoll = 20 * time.Millisecond
)

// removeSets removes the ipvs mode's sets. Those that stay in use are named in
// the error.
func removeSets(ctx context.Context, k kernel) (removed []string, err error) {
	names, err := k.sets(ctx)
	waiting, cancel := context.WithTimeout(ctx, setWait)
	defer cancel()
	for _, name := range names {
		if !isSet(name) {
			continue
		}
		failed := k.removeSet(ctx, name)
		for errors.Is(failed, errBusy) && pause(waiting, setPoll) {
			failed = k.removeSet(ctx, name)
		}
		switch {
		case failed == nil:
			removed = append(removed, "IP set "+name)
		case errors.Is(failed, errBusy):
			err = errors.Join(err, fmt.Errorf("remove IP set %s: %w", name, proxy.ErrInUse))
		case !errors.Is(failed, unix.ENOENT): // else another process was faster
			err = errors.Join(err, fmt.Errorf("remove IP set %s: %w", name, failed))
		}
	}
	return removed, err
}

// pause waits, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// maxSetName is how much of its name the kernel lets an IP set keep.
const maxSetName = 31

// isSet reports whether an IP set is one of the ipvs mode's.
func isSet(name string) bool {
	kinds := []string{
		"LOOP-BACK", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL", "LOAD-BALANCER", "LOAD-BALANCER-FW",
		"LOAD-BALANCER-LOCAL", "LOAD-BALANCER-SOURCE-IP", "LOAD-BALANCER-SOURCE-CIDR", "NODE-PORT-TCP",
		"NODE-PORT-LOCAL-TCP", "NODE-PORT-UDP", "NODE-PORT-LOCAL-UDP", "NODE-PORT-SCTP-HASH",
		"NODE-PORT-LOCAL-SCTP-HASH", "HEALTH-CHECK-NODE-PORT", "IPVS-IPS",
	}
	return slices.ContainsFunc(kinds, func(kind string) bool {
		four, six := "KUBE-"+kind, "KUBE-6-"+kind
		return name == four || name == six[:min(len(six), maxSetName)]
	})
}
