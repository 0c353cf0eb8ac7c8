package deploy

import (
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// instruction is one of a Dockerfile, lines joined.
type instruction struct{ name, rest string }

// dockerfile reads deploy/Dockerfile.
func dockerfile() ([]instruction, error) {
	data, err := os.ReadFile(root + "/deploy/Dockerfile")
	if err != nil {
		return nil, err
	}
	var out []instruction
	for line := range strings.Lines(strings.ReplaceAll(string(data), "\\\n", "")) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		out = append(out, instruction{name, strings.Join(strings.Fields(rest), " ")})
	}
	return out, nil
}

// sent returns what .dockerignore lets the build see. Ours names all that is
// wanted after a line that refuses everything.
func sent() ([]string, error) {
	data, err := os.ReadFile(root + "/.dockerignore")
	if err != nil {
		return nil, err
	}
	var out []string
	everything := false
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		wanted, ok := strings.CutPrefix(line, "!")
		switch {
		case line == "" || line[0] == '#':
		case line == "*" && !everything:
			everything = true
		case ok && everything:
			out = append(out, wanted)
		default:
			return nil, fmt.Errorf(".dockerignore: %q is not understood here", line)
		}
	}
	return out, nil
}

// workplace is where the binary is built.
var workplace = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "sluice-image-") })

// built is the binary as the Dockerfile builds it: from the files it copies,
// by the command it runs.
var built = sync.OnceValues(func() (string, error) {
	dir, err := workplace()
	if err != nil {
		return "", err
	}
	steps, err := dockerfile()
	if err != nil {
		return "", err
	}
	src := filepath.Join(dir, "src")
	for _, s := range steps {
		switch {
		case s.name == "COPY" && !strings.HasPrefix(s.rest, "--from="):
			if err := copyInto(src, strings.Fields(s.rest)); err != nil {
				return "", err
			}
		case s.name == "RUN" && strings.Contains(s.rest, "go build"):
			cmd := exec.Command("sh", "-ec", strings.ReplaceAll(s.rest, "-o /out/", "-o "+dir+"/"))
			cmd.Dir = src
			cmd.Env = append(os.Environ(), "VERSION=v9.8.7", "TARGETOS=", "TARGETARCH=")
			if out, err := cmd.CombinedOutput(); err != nil {
				return "", fmt.Errorf("RUN %s: %w\n%s", s.rest, err, out)
			}
		}
	}
	return filepath.Join(dir, "sluice"), os.Symlink("sluice", filepath.Join(dir, "kube-proxy"))
})

// copyInto does what COPY does: the last word is where to.
func copyInto(src string, words []string) error {
	to := filepath.Join(src, words[len(words)-1])
	for _, from := range words[:len(words)-1] {
		target := to
		if strings.HasSuffix(words[len(words)-1], "/") {
			target = filepath.Join(to, from)
		}
		from = filepath.Join(root, from)
		info, err := os.Stat(from)
		switch {
		case err != nil:
			return err
		case info.IsDir():
			err = os.CopyFS(target, os.DirFS(from))
		default:
			err = copyFile(target, from)
		}
		if err != nil {
			return fmt.Errorf("COPY %s: %w", from, err)
		}
	}
	return nil
}

func copyFile(to, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

// image returns the binary, built once.
func image(t *testing.T) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestMain removes what was built.
func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := workplace(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// TestImageBinary wants a static binary that knows its version and answers by
// both of its names.
func TestImageBinary(t *testing.T) {
	binary := image(t)
	f, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		t.Error("the binary is not static")
	}
	for _, name := range []string{"sluice", "kube-proxy"} {
		out, err := exec.Command(filepath.Join(filepath.Dir(binary), name), "--version").CombinedOutput()
		if err != nil || !strings.Contains(string(out), name) || !strings.Contains(string(out), "v9.8.7") {
			t.Errorf("%s --version: %v, %q", name, err, out)
		}
	}
}

// TestDockerfileStages wants every stage, path and file that is named to be
// there: made by an earlier stage, or sent to the build.
func TestDockerfileStages(t *testing.T) {
	steps, err := dockerfile()
	if err != nil {
		t.Fatal(err)
	}
	context, err := sent()
	if err != nil {
		t.Fatal(err)
	}
	stages := map[string]string{} // name to all that it does
	var current, final string
	for _, s := range steps {
		switch s.name {
		case "FROM":
			words := strings.Fields(s.rest)
			current = words[len(words)-1]
			final = current
		case "COPY":
			checkCopy(t, s.rest, stages, context)
		}
		stages[current] += s.name + " " + s.rest + "\n"
	}
	for _, want := range []string{
		"COPY --from=build /out/sluice /usr/local/bin/sluice\n",
		"RUN ln -s sluice /usr/local/bin/kube-proxy\n",
		"ENTRYPOINT [\"/usr/local/bin/sluice\"]\n",
		"iptables",
	} {
		if !strings.Contains(stages[final], want) {
			t.Errorf("the final stage lacks %q", want)
		}
	}
}

func checkCopy(t *testing.T, rest string, stages map[string]string, context []string) {
	t.Helper()
	words := strings.Fields(rest)
	if stage, ok := strings.CutPrefix(words[0], "--from="); ok {
		if !strings.Contains(stages[stage], words[1]) {
			t.Errorf("COPY %s: no earlier stage %q makes that", rest, stage)
		}
		return
	}
	for _, from := range words[:len(words)-1] {
		if !slices.Contains(context, from) {
			t.Errorf("COPY %s: .dockerignore leaves %s out", rest, from)
		}
	}
}

// TestDockerfileGoVersion wants the toolchain that go.mod asks for.
func TestDockerfileGoVersion(t *testing.T) {
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(contents(t, root+"/go.mod"))
	if version == nil {
		t.Fatal("go.mod names no version")
	}
	text := string(contents(t, root+"/deploy/Dockerfile"))
	if want := "golang:" + string(version[1]) + "-"; !strings.Contains(text, want) {
		t.Errorf("the Dockerfile builds with something else than %s", want)
	}
}

// TestGuideNamesWhatThereIs looks for each file that the guide names.
func TestGuideNamesWhatThereIs(t *testing.T) {
	guide := contents(t, root+"/docs/replace-kube-proxy.md")
	named := regexp.MustCompile(`\bdeploy/[\w/.-]*\w`).FindAllString(string(guide), -1)
	if len(named) == 0 {
		t.Fatal("the guide names nothing under deploy/")
	}
	for _, name := range named {
		if _, err := fs.Stat(os.DirFS(root), path.Clean(name)); err != nil {
			t.Error(err)
		}
	}
}
