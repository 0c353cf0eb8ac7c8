package sysctltest

import (
	"io/fs"

	"sluice/internal/kernel/sysctl"
)

// Fake keeps settings in memory, by path.
type Fake struct {
	values map[string]string
	errs   map[string]error
	writes []string
}

// NewFake returns a Fake with values by name. Other settings do not exist.
func NewFake(values map[string]string) *Fake {
	f := &Fake{values: map[string]string{}, errs: map[string]error{}}
	for name, v := range values {
		f.values[sysctl.Path(name)] = v
	}
	return f
}

// Refuse makes writing a setting fail with err.
func (f *Fake) Refuse(name string, err error) { f.errs[sysctl.Path(name)] = err }

// Writes returns all writes in order, as "path=value".
func (f *Fake) Writes() []string { return f.writes }

// Read returns the value of a setting.
func (f *Fake) Read(name string) (string, error) {
	v, ok := f.values[sysctl.Path(name)]
	if !ok {
		return "", &fs.PathError{Op: "open", Path: sysctl.Path(name), Err: fs.ErrNotExist}
	}
	return v, nil
}

// Write sets a setting.
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
