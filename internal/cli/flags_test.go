package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestWaitFlag(t *testing.T) {
	for _, tt := range []struct {
		flag string
		want time.Duration
		says string // of what is refused
	}{
		{"--wait", time.Minute, ""},
		{"--wait=30s", 30 * time.Second, ""},
		{"--wait=0s", 0, ""},
		{"--wait=-1s", 0, "want no less than 0s"},
		{"--wait=soon", 0, `invalid duration "soon"`},
	} {
		var o StatusOptions
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.AddFlags(fs)
		switch err := fs.Parse([]string{tt.flag}); {
		case tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)):
			t.Errorf("%s: %v, want %q", tt.flag, err, tt.says)
		case tt.says == "" && (err != nil || o.Wait == nil || *o.Wait != tt.want):
			t.Errorf("%s: %v, error %v; want %v", tt.flag, o.Wait, err, tt.want)
		}
	}
}

func TestStatusOptionsCheck(t *testing.T) {
	for _, tt := range []struct {
		o    StatusOptions
		want string // none: they do
	}{
		{StatusOptions{Watch: true, Output: "wide"}, ""},
		{StatusOptions{Problems: true, Output: "json"}, ""},
		{StatusOptions{Output: "xml"}, `--output "xml": want wide`},
		{StatusOptions{Watch: true, Problems: true}, "omit one"},
		{StatusOptions{Watch: true, Output: "json"}, "--output json"},
		{StatusOptions{Watch: true, Output: "yaml"}, "--output yaml"},
		{StatusOptions{Watch: true, Output: "name"}, "--output name"},
	} {
		err := tt.o.Check()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.o, err, tt.want)
		}
	}
}
