package sysctl

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
)

// Interface gives access to the settings of a kernel. A name is that of a sysctl, with
// slashes ("net/ipv4/ip_forward"), or the absolute path of a file that holds one value.
type Interface interface {
	// Read returns the value of a setting without the newline.
	Read(name string) (string, error)

	// Write sets a setting. The error is [io/fs.ErrNotExist] if there is no such setting,
	// and [io/fs.ErrPermission] or EROFS if it may not be changed.
	Write(name, value string) error
}

// ReadInt returns the value of a setting that is a number.
func ReadInt(k Interface, name string) (int, error) {
	text, err := k.Read(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("parse %s: %w", Path(name), err)
	}
	return n, nil
}

// Change sets a setting, unless it has that value already, and returns its value before.
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

// Kernel accesses the settings of the running kernel. Those of a network namespace are of
// the calling thread's.
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

// Dry reads the settings of Kernel and ignores writes. If Kernel is nil, every setting is
// 0.
type Dry struct {
	Kernel Interface
}

func (d Dry) Read(name string) (string, error) {
	if d.Kernel == nil {
		return "0", nil
	}
	return d.Kernel.Read(name)
}

func (d Dry) Write(string, string) error { return nil }
