package sysctl

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
)

// Interface is the settings of a kernel. A name is either that of a sysctl, in
// parts that are separated by slashes ("net/ipv4/ip_forward"), or with a
// leading slash the path of a file that holds one value.
type Interface interface {
	// Read returns a setting without the newline.
	Read(name string) (string, error)

	// Write changes a setting. A missing one is [io/fs.ErrNotExist]; one that
	// may not be changed [io/fs.ErrPermission] or EROFS.
	Write(name, value string) error
}

// ReadInt returns a setting that is a number.
func ReadInt(k Interface, name string) (int, error) {
	text, err := k.Read(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", Path(name), err)
	}
	return n, nil
}

// Change makes a setting what it should be and returns what it was before.
func Change(k Interface, name, to string) (was string, err error) {
	if was, err = k.Read(name); err != nil || was == to {
		return was, err
	}
	if err := k.Write(name, to); err != nil {
		return was, fmt.Errorf("set %s to %s: %w", Path(name), to, err)
	}
	return was, nil
}

// Path returns the file of a setting.
func Path(name string) string {
	if path.IsAbs(name) {
		return name
	}
	return path.Join("/proc/sys", name)
}

// Kernel is the settings of the running kernel, those of network namespaces as
// the calling thread has them.
type Kernel struct{}

func (Kernel) Read(name string) (string, error) {
	b, err := os.ReadFile(Path(name))
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}

func (Kernel) Write(name, value string) error {
	f, err := os.OpenFile(Path(name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// Dry has settings read and not written: what is written goes nowhere. Without a
// kernel every setting is 0.
type Dry struct {
	Kernel Interface // nil: there is none
}

func (d Dry) Read(name string) (string, error) {
	if d.Kernel == nil {
		return "0", nil
	}
	return d.Kernel.Read(name)
}

func (d Dry) Write(string, string) error { return nil }
