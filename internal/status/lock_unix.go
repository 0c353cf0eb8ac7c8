//go:build unix

package status

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile opens a file and locks it exclusively until it is closed. It returns
// errLocked if another process holds the lock.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errLocked
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
