package cli

import (
	"fmt"
	"io"

	"github.com/spf13/pflag"
)

// VersionOptions are the options of the version command.
type VersionOptions struct{ Output string }

// AddFlags adds the flags of the version command.
func (o *VersionOptions) AddFlags(fs *pflag.FlagSet) { addFormat(fs, &o.Output) }

// Check returns an error for flags that are invalid.
func (o *VersionOptions) Check() error { return checkFormat(o.Output, ExplainFormats) }

// Version writes what a program was built from: as text, or info as an object.
func Version(w io.Writer, o VersionOptions, text string, info any) error {
	if o.Output == "text" {
		_, err := fmt.Fprintln(w, text)
		return err
	}
	return encode(w, o.Output, info)
}
