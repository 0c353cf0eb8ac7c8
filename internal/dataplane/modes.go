package dataplane

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"sluice/internal/config"
	"sluice/internal/kernel/ct"
	"sluice/internal/proxy"
)

// Settings are what every mode must know before it sees a state.
type Settings struct {
	MasqueradeBit uint8          // the bit of the packet mark that asks for masquerading
	Families      []proxy.Family // which to serve
}

// Mode is one way of programming the kernel.
type Mode struct {
	Name config.ProxyMode

	// Probe returns which of the families the kernel can do, changing nothing.
	// When it can do none, the error says what is missing.
	Probe func(context.Context, Settings) ([]proxy.Family, error)

	// Prepare opens loopback addresses to NodePorts, or closes those that a
	// service proxy opened, for a daemon that may not write the host's settings.
	Prepare func(ctx context.Context, s Settings, opens bool) error

	// Needed says why a host needs this mode though it could do another; empty
	// if it does not. Nil: no host does.
	Needed func(context.Context, Settings) (string, error)

	// Open returns the dataplane. The kernel does nothing new before its Sync.
	// Nil: the mode is not built yet, and has at most a Cleanup.
	Open func(context.Context, Settings) (proxy.Dataplane, error)

	// Flows opens the connections that must be ended when their endpoint goes;
	// nil: the mode ends them itself.
	Flows func() (ct.Interface, error)

	// Cleanup removes the mode's rules and what kube-proxy's mode of that name
	// left, but for what an open dataplane, of whatever mode, has made its own. It
	// returns what it removed, and goes on after an error.
	Cleanup func(ctx context.Context, open proxy.Dataplane) ([]string, error)
}

// Modes returns the modes that are built for this system, the best first.
func Modes() []Mode {
	return slices.DeleteFunc(table(), func(m Mode) bool { return m.Open == nil })
}

// Names returns the names of the modes that are built.
func Names(between string) string {
	var names []string
	for _, m := range Modes() {
		names = append(names, string(m.Name))
	}
	return strings.Join(names, between)
}

// Default returns the name of the best mode; "" if this system has none.
func Default() config.ProxyMode {
	for _, m := range Modes() {
		return m.Name
	}
	return ""
}

// Of returns a mode that is built. The error says why there is none of that
// name.
func Of(name config.ProxyMode) (Mode, error) { return find(table(), name) }

func find(all []Mode, name config.ProxyMode) (Mode, error) {
	i := slices.IndexFunc(all, func(m Mode) bool { return m.Name == name })
	switch {
	case len(all) == 0:
		return Mode{}, fmt.Errorf("no proxy mode is built for %s yet, only for Linux", runtime.GOOS)
	case i < 0:
		return Mode{}, fmt.Errorf("no such mode; modes: %s", Names(", "))
	case all[i].Open == nil:
		return Mode{}, fmt.Errorf("mode %s is not built yet; modes: %s", name, Names(", "))
	default:
		return all[i], nil
	}
}

// Cleanup removes every rule that any mode of ours or of kube-proxy's may have
// left, but for what an open dataplane has made its own, if there is one, and
// returns what it removed. What cannot be removed is no reason to leave the rest.
func Cleanup(ctx context.Context, open proxy.Dataplane) (removed []string, err error) {
	for _, m := range table() {
		if m.Cleanup == nil {
			continue
		}
		done, failed := m.Cleanup(ctx, open)
		removed, err = append(removed, done...), errors.Join(err, failed)
	}
	return removed, err
}
