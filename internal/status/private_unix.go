//go:build unix

package status

import (
	"errors"
	"net"
	"os"
	"path/filepath"
)

// makePrivate makes a folder, unless it is there.
func makePrivate(dir string) error { return os.MkdirAll(dir, 0o700) }

// listenPrivate binds a socket within a folder that nobody else can enter, and
// moves it to its place once only its owner may use it. The caller's lock makes
// the folder's name ours: one that is there was left by a daemon that was killed.
func listenPrivate(path string) (*net.UnixListener, error) {
	private := path + ".new"
	if err := errors.Join(os.RemoveAll(private), os.Mkdir(private, 0o700)); err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(private) }()
	at := filepath.Join(private, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(at, 0o600); err == nil {
		err = os.Rename(at, path)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
