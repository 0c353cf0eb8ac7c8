package sysctltest

import (
	"io/fs"

	"sluice/internal/kernel/sysctl"
)

// Fake is settings in memory, by their paths.
type Fake struct {
	values map[string]string
	errs   map[string]error
	writes []string
}

// NewFake returns settings with values, by name.
func NewFake(values map[string]string) *Fake {
	f := &Fake{values: map[string]string{}, errs: map[string]error{}}
	for name, v := range values {
		f.values[sysctl.Path(name)] = v
	}
	return f
}

// Refuse makes every writing of a setting fail.
func (f *Fake) Refuse(name string, err error) { f.errs[sysctl.Path(name)] = err }

// Writes returns what was written, in order: paths with values.
func (f *Fake) Writes() []string { return f.writes }

// Read returns a value of memory.
func (f *Fake) Read(name string) (string, error) {
	v, ok := f.values[sysctl.Path(name)]
	if !ok {
		return "", &fs.PathError{Op: "open", Path: sysctl.Path(name), Err: fs.ErrNotExist}
	}
	return v, nil
}

// Write changes a value of memory.
func (f *Fake) Write(name, value string) error {
	if _, err := f.Read(name); err != nil {
		return err
	}
	if err := f.errs[sysctl.Path(name)]; err != nil {
		return &fs.PathError{Op: "open", Path: sysctl.Path(name), Err: err}
	}
	f.values[sysctl.Path(name)] = value
	f.writes = append(f.writes, sysctl.Path(name)+"="+value)
	return nil
}
