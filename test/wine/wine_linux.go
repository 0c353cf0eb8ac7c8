package wine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sluice/internal/kernel/hns"
)

// wine64 is where Debian has it; /usr/bin/wine asks for the 32 bits, too.
const (
	wine64     = "/usr/lib/wine/wine64"
	wineserver = "/usr/lib/wine/wineserver64"
)

// Windows runs programs. All that it starts ends with the test.
type Windows struct {
	env    []string
	server *server
}

// Start prepares Windows whose Host Networking Service is given, with its
// networks by name. Its sockets are those of the network namespace it is started
// in.
func Start(t testing.TB, service hns.Interface, networks ...string) *Windows {
	t.Helper()
	template, err := template(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	prefix := filepath.Join(t.TempDir(), "prefix")
	if out, err := exec.Command("cp", "-a", template, prefix).CombinedOutput(); err != nil {
		t.Fatalf("copy %s: %v\n%s", template, err, out)
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &Windows{
		env:    append(environment(prefix), "SLUICE_TEST_HNS="+listener.Addr().String()),
		server: newServer(service, networks),
	}
	go w.server.serve(listener)
	t.Cleanup(func() {
		if err := errors.Join(w.halt(), listener.Close()); err != nil {
			t.Error(err)
		}
	})
	return w
}

// environment is that of a program. Wine asks to install what a browser and .NET
// need unless it is told that they are not to be had.
func environment(prefix string) []string {
	return append(os.Environ(), "WINEPREFIX="+prefix, "WINEDEBUG=-all", "WINEDLLOVERRIDES=mscoree,mshtml=")
}

// Command returns a program to be run. An interrupt is Ctrl-C to it. Files of this
// machine are on its drive Z.
func (w *Windows) Command(ctx context.Context, exe string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, wine64, append([]string{exe}, args...)...)
	cmd.Env = w.env
	return cmd
}

// Calls returns how often each function of the service's libraries was called
// since the last time.
func (w *Windows) Calls() map[string]int { return w.server.reset() }

// halt ends all programs, also those that Wine started by itself.
func (w *Windows) halt() error {
	for _, flag := range []string{"--kill", "--wait"} {
		cmd := exec.Command(wineserver, flag)
		cmd.Env = w.env
		if out, err := cmd.CombinedOutput(); err != nil && flag == "--wait" {
			return fmt.Errorf("halt Wine: %w: %s", err, out)
		}
	}
	return nil
}

// Compile builds the tests of a package for Windows.
func Compile(ctx context.Context, pkg, exe string) error {
	_, err := goForWindows(ctx, "test", "-c", "-o", exe, pkg)
	return errors.Join(err, lookAtSources(ctx, pkg))
}

// Build builds a program for Windows.
func Build(ctx context.Context, pkg, exe string) error {
	_, err := goForWindows(ctx, "build", "-o", exe, pkg)
	return errors.Join(err, lookAtSources(ctx, pkg))
}

// lookAtSources makes the result of this test depend on what a package is made of
// on Windows: go test remembers results by the files that a test has looked at.
func lookAtSources(ctx context.Context, pkg string) error {
	const format = `{{if .Module}}{{if .Module.Main}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{end}}{{end}}`
	out, err := goForWindows(ctx, "list", "-deps", "-test", "-f", format, pkg)
	for file := range strings.Lines(string(out)) {
		_, _ = os.Stat(strings.TrimSpace(file)) // what is generated for tests is elsewhere
	}
	return err
}

func goForWindows(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	out, err := cmd.Output()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return nil, fmt.Errorf("go %v for Windows: %w\n%s", args, err, failed.Stderr)
	}
	return out, err
}
