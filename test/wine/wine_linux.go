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
	"sluice/test/programs"
)

// wine64 and wineserver are Debian's paths; /usr/bin/wine would also require the 32-bit version.
const (
	wine64     = "/usr/lib/wine/wine64"
	wineserver = "/usr/lib/wine/wineserver64"
)

// Windows runs programs in a Wine prefix. All of them end with the test.
type Windows struct {
	env    []string
	server *server
}

// Start prepares a Windows whose HNS is service, with networks of these names. Its sockets are in
// the caller's network namespace.
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

// environment returns the environment of Wine programs. The overrides stop Wine from offering to
// install a browser engine and .NET.
func environment(prefix string) []string {
	return append(os.Environ(), "WINEPREFIX="+prefix, "WINEDEBUG=-all", "WINEDLLOVERRIDES=mscoree,mshtml=")
}

// Command returns a command for a Windows program. Interrupting it sends Ctrl-C. Drive Z is the
// root of this machine.
func (w *Windows) Command(ctx context.Context, exe string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, wine64, append([]string{exe}, args...)...)
	cmd.Env = w.env
	return cmd
}

// Calls returns how often each HNS function was called since the last call of Calls.
func (w *Windows) Calls() map[string]int { return w.server.reset() }

// halt ends all programs, including those that Wine started itself.
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
	return errors.Join(err, statSources(ctx, pkg))
}

// Build builds sluice.exe.
func Build(ctx context.Context, exe string) error {
	return errors.Join(programs.WindowsDaemon.Put(ctx, exe), statSources(ctx, "sluice/cmd/sluice"))
}

// statSources makes the cached result of this test depend on the sources of a package for Windows:
// go test caches results by the files that a test has opened or looked up.
func statSources(ctx context.Context, pkg string) error {
	const format = `{{if .Module}}{{if .Module.Main}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{end}}{{end}}`
	out, err := goForWindows(ctx, "list", "-deps", "-test", "-f", format, pkg)
	for file := range strings.Lines(string(out)) {
		_, _ = os.Stat(strings.TrimSpace(file)) // generated files of test binaries do not exist
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
