package app

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is the release. Nothing but the linker sets it:
// -ldflags "-X sluice/internal/app.version=v1.2.3".
var version string

// Version returns the release, or what the build knows of its origin.
func Version() string {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return cmp.Or(version, "unknown")
	}
	return cmp.Or(version, describe(build))
}

// describe names a build that is no release: by its commit if that is known.
func describe(build *debug.BuildInfo) string {
	var revision, dirty string
	for _, s := range build.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "+dirty"
			}
		}
	}
	switch {
	case build.Main.Version != "" && build.Main.Version != "(devel)":
		return build.Main.Version
	case revision != "":
		return "devel-" + revision + dirty
	default:
		return "devel"
	}
}

func versionLine(name string) string {
	return fmt.Sprintf("%s %s %s %s/%s\n", name, Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
