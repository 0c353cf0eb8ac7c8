package dataplane

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"sluice/internal/config"
	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

// Aliases, so that callers need not import package mode.
type (
	Mode      = mode.Mode
	Settings  = mode.Settings
	Rendering = mode.Rendering
)

// shareTraces sets Settings.Others of each mode when it is opened, prepared or rendered: a
// function that returns the traces of all other modes.
func shareTraces(all []Mode) []Mode {
	for i := range all {
		others := func(ctx context.Context) (found localnet.Traces, err error) {
			for j, m := range all {
				if j != i && m.Traces != nil {
					more, failed := m.Traces(ctx)
					found, err = found.And(more), errors.Join(err, failed)
				}
			}
			return found, err
		}
		open, prepare, render := all[i].Open, all[i].Prepare, all[i].Render
		if open == nil {
			continue
		}
		all[i].Open = func(ctx context.Context, s Settings) (proxy.Dataplane, error) {
			s.Others = others
			return open(ctx, s)
		}
		all[i].Prepare = func(ctx context.Context, s Settings, opens bool) error {
			s.Others = others
			return prepare(ctx, s, opens)
		}
		all[i].Render = func(ctx context.Context, r *Rendering) error {
			r.Others = others
			return render(ctx, r)
		}
	}
	return all
}

// Modes returns the modes that are built for this operating system, the preferred one
// first.
func Modes() []Mode {
	return slices.DeleteFunc(table(), func(m Mode) bool { return m.Open == nil })
}

// Names returns the names of Modes, joined by a separator.
func Names(separator string) string {
	var names []string
	for _, m := range Modes() {
		names = append(names, string(m.Name))
	}
	return strings.Join(names, separator)
}

// Default returns the name of the preferred mode, or "" if this operating system has none.
func Default() config.ProxyMode {
	for _, m := range Modes() {
		return m.Name
	}
	return ""
}

// Of returns the mode of a name. The error says why there is none.
func Of(name config.ProxyMode) (Mode, error) { return find(table(), name) }

// Rendered returns the mode of a name if it can be rendered on this operating system, even
// if it cannot be opened.
func Rendered(name config.ProxyMode) (Mode, error) {
	for _, m := range table() {
		if m.Name == name && m.Render != nil {
			return m, nil
		}
	}
	return Of(name)
}

func find(all []Mode, name config.ProxyMode) (Mode, error) {
	i := slices.IndexFunc(all, func(m Mode) bool { return m.Name == name })
	switch {
	case len(all) == 0:
		return Mode{}, fmt.Errorf("no proxy mode is built for %s yet, only for Linux and Windows", runtime.GOOS)
	case i < 0:
		return Mode{}, fmt.Errorf("no such mode; modes: %s", Names(", "))
	case all[i].Open == nil:
		return Mode{}, fmt.Errorf("mode %s is for another operating system; modes: %s", name, Names(", "))
	default:
		return all[i], nil
	}
}

// Cleanup removes everything that any mode of ours or of kube-proxy may have left, except
// for what an open dataplane uses; open may be nil. It returns what it removed. If
// something cannot be removed, it still removes the rest.
func Cleanup(ctx context.Context, s Settings, open proxy.Dataplane) (removed []string, err error) {
	for _, m := range table() {
		if m.Cleanup == nil {
			continue
		}
		done, failed := m.Cleanup(ctx, s, open)
		removed, err = append(removed, done...), errors.Join(err, failed)
	}
	return removed, err
}
