package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Link is the link of the ipvs mode.
type Link struct {
	Name  string
	Addrs []netip.Addr
	index int
}

// Server is an IPVS virtual server.
type Server struct {
	Protocol uint8 // IPPROTO_TCP and so on
	Addr     netip.AddrPort
}

// String names the server.
func (s Server) String() string {
	names := map[uint8]string{unix.IPPROTO_TCP: "TCP", unix.IPPROTO_UDP: "UDP", unix.IPPROTO_SCTP: "SCTP"}
	if name := names[s.Protocol]; name != "" {
		return name + " " + s.Addr.String()
	}
	return fmt.Sprintf("protocol %d %v", s.Protocol, s.Addr)
}

// served returns the servers at addresses of the link. Others may be
// anybody's.
func (l *Link) served(servers []Server) []Server {
	var at []Server
	for _, s := range servers {
		if slices.Contains(l.Addrs, s.Addr.Addr()) {
			at = append(at, s)
		}
	}
	return at
}

// errBusy says that a set is in use.
var errBusy = errors.New("the set is in use")

// ipvsKernel is what the ipvs mode uses of the kernel beside iptables.
type ipvsKernel interface {
	link() (*Link, error) // nil if there is none
	removeLink(*Link) error
	servers() ([]Server, error) // none if the kernel has no IPVS
	removeServer(Server) error
	sets() ([]string, error) // of all owners; none if the kernel has no IP sets
	removeSet(name string) error
}

const (
	// setWait bounds the wait for the kernel to let go of sets: nf_tables may
	// free deleted rules, and what they refer to, a little later.
	setWait = 2 * time.Second
	setPoll = 20 * time.Millisecond
)

// removeSets removes sets. Those that stay in use are named in the error.
func (h *host) removeSets(ctx context.Context, names []string) (removed []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, setWait)
	defer cancel()
	var errs []error
	for _, name := range names {
		err := h.ipvs.removeSet(name)
		for errors.Is(err, errBusy) && pause(ctx, setPoll) {
			err = h.ipvs.removeSet(name)
		}
		switch {
		case err == nil:
			removed = append(removed, "IP set "+name)
		case errors.Is(err, errBusy):
			errs = append(errs, fmt.Errorf("remove IP set %s: %w", name, ErrInUse))
		case !errors.Is(err, unix.ENOENT): // else somebody was faster
			errs = append(errs, fmt.Errorf("remove IP set %s: %w", name, err))
		}
	}
	return removed, errors.Join(errs...)
}

// pause waits, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// removeLink removes the link, after the virtual servers at its addresses.
func (h *host) removeLink(l *Leftovers) (removed []string, err error) {
	var errs []error
	for _, s := range l.Servers {
		err := h.ipvs.removeServer(s)
		switch {
		case err == nil:
			removed = append(removed, "IPVS virtual server "+s.String())
		case !errors.Is(err, unix.ESRCH): // else somebody was faster
			errs = append(errs, fmt.Errorf("remove IPVS virtual server %v: %w", s, err))
		}
	}
	if l.OtherServers > 0 {
		removed = append(removed, fmt.Sprintf("left alone: %s at addresses that are not on link %s "+
			"(kube-proxy's node ports among them cannot be told from other programs' servers)", count(l.OtherServers, "IPVS virtual server"), l.Link.Name))
	}
	if err := h.ipvs.removeLink(l.Link); err != nil {
		return removed, errors.Join(append(errs, fmt.Errorf("remove link %s: %w", l.Link.Name, err))...)
	}
	return append(removed, "link "+l.Link.Name+" and its addresses"), errors.Join(errs...)
}
