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

// forAdministrators lets the system and administrators do everything in a folder
// and with what is made there, and nobody else anything, whatever is above it.
const forAdministrators = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)"

// makePrivate makes a folder, unless it is there. One that a user has made would
// be open to that user.
func makePrivate(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return err
	}
	access, err := windows.SecurityDescriptorFromString(forAdministrators)
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
		return fmt.Errorf("%s belongs to %s, not to administrators: remove it, or name a socket elsewhere", dir, owner)
	}
	return nil
}

// listenPrivate binds a socket. Who may use it is who may enter its folder.
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
