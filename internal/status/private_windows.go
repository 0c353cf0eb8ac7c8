package status

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/windows"
)

// administratorsOnly is a security descriptor that gives the system and
// administrators full access to a directory and what is created in it. It inherits
// nothing, so nobody else has access.
const administratorsOnly = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)"

// makePrivateDir creates a directory that only the system and administrators may
// enter. If it exists, it must belong to them: its owner has access to it.
func makePrivateDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return err
	}
	access, err := windows.SecurityDescriptorFromString(administratorsOnly)
	if err != nil {
		return err
	}
	attributes := &windows.SecurityAttributes{Length: uint32(unsafe.Sizeof(windows.SecurityAttributes{})), SecurityDescriptor: access}
	err = windows.CreateDirectory(name, attributes)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	found, err := windows.GetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return err
	}
	owner, _, err := found.Owner()
	if err != nil {
		return err
	}
	if !owner.IsWellKnown(windows.WinBuiltinAdministratorsSid) && !owner.IsWellKnown(windows.WinLocalSystemSid) {
		return fmt.Errorf("%s belongs to %s, not to administrators: remove it, or configure a socket elsewhere", dir, owner)
	}
	return nil
}

// listenPrivate listens on a unix socket. Whoever may enter its directory may connect.
func listenPrivate(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	return l, nil
}
