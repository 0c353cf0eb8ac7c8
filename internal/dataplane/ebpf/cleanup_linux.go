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

// Cleanup removes programs and maps, unless the mode is open. Connections stay as
// they are. Where another mode takes over, so do the programs that tell a socket the
// Service's address as that of its peer: for a while to all sockets, as answers may be
// under way, and for as long as there are connected ones.
func Cleanup(_ context.Context, s mode.Settings, open proxy.Dataplane) (removed []string, err error) {
	if _, own := open.(*Dataplane); own {
		return nil, nil
	}
	root := cmp.Or(s.EBPF.BPFRoot, mode.DefaultEBPF().BPFRoot)
	if _, err := os.Stat(root); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	began, err := detachAll(filepath.Join(root, "connect?"), filepath.Join(root, "sendmsg?"),
		filepath.Join(root, "ends"), filepath.Join(root, "sent"), filepath.Join(root, "received"))
	if open != nil {
		// Who lacks CAP_BPF cannot count, and so does not wait for long.
		n, _ := connected(root)
		if began || n > 0 {
			return nil, errors.Join(err, keepSockets(root),
				fmt.Errorf("programs that tell sockets their peers stay, %d are connected: %w", n, proxy.ErrDraining))
		}
	}
	_, failed := detachAll(filepath.Join(root, "recvmsg?"), filepath.Join(root, "getpeername?"), filepath.Join(root, "cut"), filepath.Join(root, "release"))
	if err = errors.Join(err, failed, os.RemoveAll(root)); err == nil {
		removed = []string{"programs and maps below " + root}
	}
	return removed, err
}

// detachAll ends the work of all programs that are pinned as patterns say, and reports
// whether there were any.
func detachAll(patterns ...string) (some bool, err error) {
	for _, p := range patterns {
		pins, failed := filepath.Glob(p)
		err = errors.Join(err, failed)
		for _, pin := range pins {
			some, err = true, errors.Join(err, detach(pin))
		}
	}
	return some, err
}

// detach ends the work of a program that is pinned, at once: if only the pin goes, the
// kernel does it a little later.
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

// The maps of sockets, with the programs that tell which are connected.
var socketMaps = map[string]string{"tcp_sockets": "connected_tcp", "udp_sockets": "connected_udp"}

// connected counts the sockets that are connected to an endpoint.
func connected(root string) (n int, err error) {
	for name, program := range socketMaps {
		found, failed := tell(program, filepath.Join(root, format, name))
		n, err = n+len(found), errors.Join(err, failed)
	}
	return n, err
}

// tell runs an iterator that needs nothing but the map that is pinned somewhere.
func tell(program, pin string) (found [][]byte, err error) {
	m, err := ebpf.LoadPinnedMap(pin, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	p, err := loadOne(program)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	return run(p, m, 4)
}

// keepSockets removes the maps that have nothing to do with open sockets.
func keepSockets(root string) error {
	maps, err := filepath.Glob(filepath.Join(root, "maps-*", "*"))
	for _, m := range maps {
		if !strings.HasSuffix(m, "_sockets") {
			err = errors.Join(err, os.Remove(m))
		}
	}
	return err
}
