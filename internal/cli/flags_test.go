package cli

import (
	"strings"
	"testing"
)

func TestStatusOptionsThatMakeNoSense(t *testing.T) {
	for _, tt := range []struct {
		o    StatusOptions
		want string // none: they do
	}{
		{StatusOptions{Watch: true, Output: "wide"}, ""},
		{StatusOptions{Problems: true, Output: "json"}, ""},
		{StatusOptions{Output: "xml"}, `--output "xml": want wide`},
		{StatusOptions{Watch: true, Problems: true}, "leave one out"},
		{StatusOptions{Watch: true, Output: "json"}, "leave it out, or --output json"},
		{StatusOptions{Watch: true, Output: "yaml"}, "leave it out, or --output yaml"},
		{StatusOptions{Watch: true, Output: "name"}, "leave it out, or --output name"},
	} {
		err := tt.o.Check()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.o, err, tt.want)
		}
	}
}
