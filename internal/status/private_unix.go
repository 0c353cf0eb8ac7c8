//go:build unix

package status

import (
	"errors"
	"net"
	"os"
	"path/filepath"
)

// makePrivateDir creates a directory that only its owner may enter, unless it exists.
func makePrivateDir(dir string) error { return os.MkdirAll(dir, 0o700) }

// listenPrivate listens on a unix socket that only its owner may connect to. It binds
// the socket in a directory that only the owner may enter, and moves it to path once
// its mode is set, so that at no time anybody else may connect. The caller holds the
// lock of path, so a directory that exists was left by a daemon that was killed.
func listenPrivate(path string) (*net.UnixListener, error) {
	private := path + ".new"
	if err := errors.Join(os.RemoveAll(private), os.Mkdir(private, 0o700)); err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(private) }()
	socket := filepath.Join(private, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(socket, 0o600); err == nil {
		err = os.Rename(socket, path)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
