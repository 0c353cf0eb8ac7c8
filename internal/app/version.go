package app

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	apiversion "k8s.io/apimachinery/pkg/version"
)

// The release and what it was built from. Nothing but the linker sets them:
// -ldflags "-X sluice/internal/app.version=v1.2.3".
var version, commit, date string

// core is what a release is named by, at the beginning of a version.
var core = regexp.MustCompile(`^v(\d+)\.(\d+)\.\d+`)

func build() apiversion.Info {
	known, _ := debug.ReadBuildInfo()
	return info(cmp.Or(known, &debug.BuildInfo{}))
}

// info returns what the linker, or else the compiler, has noted of this program.
func info(known *debug.BuildInfo) apiversion.Info {
	noted := map[string]string{}
	for _, s := range known.Settings {
		noted[s.Key] = s.Value
	}
	i := apiversion.Info{
		// The compiler names a build in a repository by its commit.
		GitVersion: cmp.Or(version, strings.Trim(known.Main.Version, "()"), "devel"),
		GitCommit:  cmp.Or(commit, noted["vcs.revision"]),
		BuildDate:  cmp.Or(date, noted["vcs.time"]),
		GoVersion:  runtime.Version(),
		Compiler:   runtime.Compiler,
		Platform:   runtime.GOOS + "/" + runtime.GOARCH,
	}
	switch {
	case strings.HasSuffix(i.GitVersion, "dirty"):
		i.GitTreeState = "dirty"
	case i.GitCommit != "":
		i.GitTreeState = "clean"
	}
	if m := core.FindStringSubmatch(i.GitVersion); m != nil {
		i.Major, i.Minor = m[1], m[2]
	}
	return i
}

// versionFlag is the flag --version: true and raw print the version, and one
// like v1.2.3-more is the version to go by.
type versionFlag struct{ said string }

func (v *versionFlag) String() string { return cmp.Or(v.said, "false") }
func (*versionFlag) Type() string     { return "version" }

func (v *versionFlag) Set(s string) error {
	if s == "raw" {
		v.said = s
		return nil
	}
	if !strings.HasPrefix(s, "v") {
		on, err := strconv.ParseBool(s)
		v.said = strconv.FormatBool(on)
		return err
	}
	if _, err := utilversion.ParseSemantic(s); err != nil {
		return err
	}
	own := cmp.Or(core.FindString(build().GitVersion), "v0.0.0")
	if said := core.FindString(s); said != own {
		return fmt.Errorf("%s is another release than this one, %s; only what follows can differ", said, own)
	}
	v.said = s
	return nil
}

func (v *versionFlag) reported() string {
	if strings.HasPrefix(v.said, "v") {
		return v.said
	}
	return build().GitVersion
}

// print prints the version and reports whether it was asked for.
func (v *versionFlag) print(out io.Writer, name string) bool {
	switch v.said {
	case "raw":
		_, _ = fmt.Fprintf(out, "%#v\n", build())
	case "true":
		i := build()
		_, _ = fmt.Fprintf(out, "%s %s %s %s\n", name, i.GitVersion, i.GoVersion, i.Platform)
	default:
		return false
	}
	return true
}
