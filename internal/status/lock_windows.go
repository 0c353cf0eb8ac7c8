package status

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lockFile opens a file and locks it exclusively until it is closed. It returns
// errLocked if another process holds the lock.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	const flags = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	if err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, &windows.Overlapped{}); err != nil {
		if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
			err = errLocked
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
