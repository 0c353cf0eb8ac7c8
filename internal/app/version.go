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

	"github.com/spf13/cobra"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	apiversion "k8s.io/apimachinery/pkg/version"

	"sluice/internal/cli"
	"sluice/internal/proxy"
)

// The release and what it was built from. Only the linker sets them:
// -ldflags "-X sluice/internal/app.version=v1.2.3".
var version, commit, date string

// releasePattern matches the release at the beginning of a version, without what
// follows the patch number.
var releasePattern = regexp.MustCompile(`^v(\d+)\.(\d+)\.\d+`)

// build returns the version of this program and what it was built from.
func build() apiversion.Info {
	info, _ := debug.ReadBuildInfo()
	return buildInfo(cmp.Or(info, &debug.BuildInfo{}))
}

// buildInfo returns what the linker has set or, where it has not, what the compiler
// has recorded.
func buildInfo(recorded *debug.BuildInfo) apiversion.Info {
	settings := map[string]string{}
	for _, s := range recorded.Settings {
		settings[s.Key] = s.Value
	}
	i := apiversion.Info{
		// In a repository the compiler derives the version from the commit.
		GitVersion: cmp.Or(version, strings.Trim(recorded.Main.Version, "()"), "devel"),
		GitCommit:  cmp.Or(commit, settings["vcs.revision"]),
		BuildDate:  cmp.Or(date, settings["vcs.time"]),
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
	if m := releasePattern.FindStringSubmatch(i.GitVersion); m != nil {
		i.Major, i.Minor = m[1], m[2]
	}
	return i
}

func versionLine(name string, i apiversion.Info) string {
	return fmt.Sprintf("%s %s %s %s", name, i.GitVersion, i.GoVersion, i.Platform)
}

// newVersionCommand returns the command that prints what --version does, and the commit.
func newVersionCommand() *cobra.Command {
	var o cli.VersionOptions
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program, and what it was built from",
		Args:  cobra.NoArgs,
	}
	o.AddFlags(cmd.Flags())
	completeFlag(cmd, "output", cli.ExplainFormats)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.Check(); err != nil {
			return err
		}
		i := build()
		text := versionLine(cmd.Root().Name(), i)
		if i.GitCommit != "" {
			text += fmt.Sprintf("\ncommit %s (%s) of %s", i.GitCommit, i.GitTreeState, i.BuildDate)
		}
		return cli.Version(cmd.OutOrStdout(), o, text, i)
	}
	return cli.Answering(cmd)
}

// buildMetric returns the metric sluice_build_info. Unlike kubernetes_build_info, which
// every component of a cluster has, it tells nodes with Sluice from those with kube-proxy.
func buildMetric(i apiversion.Info) proxy.Metric {
	return proxy.Metric{
		Name: "build_info", Help: "What Sluice was built from and with, always 1", Labels: []string{"version", "revision", "goversion"},
		Read: func(yield func(float64, ...string)) { yield(1, i.GitVersion, i.GitCommit, i.GoVersion) },
	}
}

// versionFlag is the flag --version. The values true and raw print the version; one
// like v1.2.3-more is the version to report.
type versionFlag struct{ value string }

func (v *versionFlag) String() string { return cmp.Or(v.value, "false") }
func (*versionFlag) Type() string     { return "version" }

func (v *versionFlag) Set(s string) error {
	if s == "raw" {
		v.value = s
		return nil
	}
	if !strings.HasPrefix(s, "v") {
		on, err := strconv.ParseBool(s)
		v.value = strconv.FormatBool(on)
		return err
	}
	if _, err := utilversion.ParseSemantic(s); err != nil {
		return err
	}
	own := cmp.Or(releasePattern.FindString(build().GitVersion), "v0.0.0")
	if release := releasePattern.FindString(s); release != own {
		return fmt.Errorf("%s is not this release, %s; only what follows the release can differ", release, own)
	}
	v.value = s
	return nil
}

// reported returns the version to report: that of the flag, or that of the build.
func (v *versionFlag) reported() string {
	if strings.HasPrefix(v.value, "v") {
		return v.value
	}
	return build().GitVersion
}

// print prints the version if the flag asks for that, and reports whether it does.
func (v *versionFlag) print(out io.Writer, name string) bool {
	switch v.value {
	case "raw":
		_, _ = fmt.Fprintf(out, "%#v\n", build())
	case "true":
		_, _ = fmt.Fprintln(out, versionLine(name, build()))
	default:
		return false
	}
	return true
}
