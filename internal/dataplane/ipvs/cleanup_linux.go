package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

// Mode is the ipvs mode, which can clean up after kube-proxy's and nothing else
// yet. The chains that refer to its sets must be gone before.
func Mode() mode.Mode {
	return mode.Mode{Name: "ipvs", Cleanup: func(ctx context.Context, _ proxy.Dataplane) ([]string, error) {
		return cleanup(ctx, netlinkKernel{})
	}}
}

// linkName is the link that holds the Service addresses.
const linkName = "kube-ipvs0"

// serviceLink is that link.
type serviceLink struct {
	index int
	addrs []netip.Addr
}

// server is an IPVS virtual server.
type server struct {
	protocol proxy.Protocol
	addr     netip.AddrPort
}

func (s server) String() string { return fmt.Sprintf("IPVS virtual server %v %v", s.protocol, s.addr) }

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

func cleanup(ctx context.Context, k kernel) ([]string, error) {
	var r report
	r.removeLink(ctx, k)
	r.removeSets(ctx, k)
	return r.removed, r.err
}

// report is what was removed, and what could not be.
type report struct {
	removed []string
	err     error
}

func (r *report) fail(err error) { r.err = errors.Join(r.err, err) }

// note records how a removal ended, unless another process was faster.
func (r *report) note(what string, err error) {
	switch {
	case err == nil:
		r.removed = append(r.removed, what)
	case !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV):
		r.fail(fmt.Errorf("remove %s: %w", what, err))
	}
}

// removeLink removes the link, after the virtual servers at its addresses.
// Those at other addresses may belong to other programs.
func (r *report) removeLink(ctx context.Context, k kernel) {
	link, err := k.link()
	r.fail(err)
	if link == nil {
		return
	}
	servers, err := k.servers(ctx)
	r.fail(err)
	others := 0
	for _, s := range servers {
		if slices.Contains(link.addrs, s.addr.Addr()) {
			r.note(s.String(), k.removeServer(ctx, s))
		} else {
			others++
		}
	}
	if others > 0 {
		plural := strings.Repeat("s", min(others-1, 1))
		r.removed = append(r.removed, fmt.Sprintf("left alone: %d IPVS virtual server%s at addresses that are not on link %s "+
			"(kube-proxy's node ports among them cannot be told from other programs' servers)", others, plural, linkName))
	}
	r.note("link "+linkName+" and its addresses", k.removeLink(link))
}

const (
	// setWait bounds the wait for the kernel to let go of sets: nf_tables may
	// free deleted rules, and what they refer to, a little later.
	setWait = 2 * time.Second
	setPoll = 20 * time.Millisecond
)

// removeSets removes the ipvs mode's sets. Those that stay in use are named in
// the error.
func (r *report) removeSets(ctx context.Context, k kernel) {
	names, err := k.sets(ctx)
	r.fail(err)
	waiting, cancel := context.WithTimeout(ctx, setWait)
	defer cancel()
	for _, name := range slices.DeleteFunc(names, func(name string) bool { return !isSet(name) }) {
		err := k.removeSet(ctx, name)
		for errors.Is(err, errBusy) && waiting.Err() == nil {
			time.Sleep(setPoll)
			err = k.removeSet(ctx, name)
		}
		if errors.Is(err, errBusy) {
			err = proxy.ErrInUse
		}
		r.note("IP set "+name, err)
	}
}

// isSet reports whether an IP set is one of the ipvs mode's. The kernel keeps 31
// characters of a name.
func isSet(name string) bool {
	kinds := []string{
		"LOOP-BACK", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL", "LOAD-BALANCER", "LOAD-BALANCER-FW",
		"LOAD-BALANCER-LOCAL", "LOAD-BALANCER-SOURCE-IP", "LOAD-BALANCER-SOURCE-CIDR", "NODE-PORT-TCP",
		"NODE-PORT-LOCAL-TCP", "NODE-PORT-UDP", "NODE-PORT-LOCAL-UDP", "NODE-PORT-SCTP-HASH",
		"NODE-PORT-LOCAL-SCTP-HASH", "HEALTH-CHECK-NODE-PORT", "IPVS-IPS",
	}
	return slices.ContainsFunc(kinds, func(kind string) bool {
		four, six := "KUBE-"+kind, "KUBE-6-"+kind
		return name == four || name == six[:min(len(six), 31)]
	})
}
