package ebpf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

// Cleanup removes programs and maps, unless the mode is open. Connections stay as they
// are. If another mode is open, the programs stay that report the Service's address as the
// peer of a socket: until the next call, since replies to unconnected sockets may be under
// way, and after that for as long as translated sockets are connected. Until all is removed
// Cleanup returns proxy.ErrDraining.
func Cleanup(_ context.Context, s mode.Settings, open proxy.Dataplane) (removed []string, err error) {
	if _, own := open.(*Dataplane); own {
		return nil, nil
	}
	root := cmp.Or(s.EBPF.BPFRoot, mode.DefaultEBPF().BPFRoot)
	if _, err := os.Stat(root); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	detached, err := detachAll(filepath.Join(root, "connect?"), filepath.Join(root, "sendmsg?"),
		filepath.Join(root, "ends"), filepath.Join(root, "sent"), filepath.Join(root, "received"))
	if open != nil {
		// Without CAP_BPF sockets cannot be counted; then only the first call keeps programs.
		n, _ := countConnected(root)
		if detached || n > 0 {
			return nil, errors.Join(err, removeOtherMaps(root),
				fmt.Errorf("keep programs that report the peer of sockets, %d are connected: %w", n, proxy.ErrDraining))
		}
	}
	_, failed := detachAll(filepath.Join(root, "recvmsg?"), filepath.Join(root, "getpeername?"), filepath.Join(root, "cut"), filepath.Join(root, "release"))
	if err = errors.Join(err, failed, os.RemoveAll(root)); err == nil {
		removed = []string{"programs and maps below " + root}
	}
	return removed, err
}

// detachAll detaches all programs whose pins match one of the patterns, and reports whether
// there were any.
func detachAll(patterns ...string) (found bool, err error) {
	for _, p := range patterns {
		pins, failed := filepath.Glob(p)
		err = errors.Join(err, failed)
		for _, pin := range pins {
			found, err = true, errors.Join(err, detach(pin))
		}
	}
	return found, err
}

// detach detaches a pinned program and removes its pin. Removing the pin alone would
// detach it, too, but only a little later.
func detach(pin string) error {
	if l, err := link.LoadPinnedLink(pin, nil); err == nil {
		_ = l.Detach()
		_ = l.Close()
	}
	if err := os.Remove(pin); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// countConnected counts the translated sockets that are connected to an endpoint.
func countConnected(root string) (n int, err error) {
	for name, program := range map[string]string{"tcp_sockets": "connected_tcp", "udp_sockets": "connected_udp"} {
		found, failed := iteratePinned(program, filepath.Join(root, format, name))
		n, err = n+len(found), errors.Join(err, failed)
	}
	return n, err
}

// iteratePinned loads an iterator program and runs it over a pinned map. It returns the
// records, which have 4 bytes each.
func iteratePinned(program, pin string) (found [][]byte, err error) {
	m, err := ebpf.LoadPinnedMap(pin, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	p, err := loadProgram(program)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	return runIterator(p, m, 4)
}

// removeOtherMaps removes the pins of all maps but those of open sockets.
func removeOtherMaps(root string) error {
	maps, err := filepath.Glob(filepath.Join(root, "maps-*", "*"))
	for _, m := range maps {
		if !strings.HasSuffix(m, "_sockets") {
			err = errors.Join(err, os.Remove(m))
		}
	}
	return err
}
