package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// final matches the versions of releases, not pre-releases.
var final = regexp.MustCompile(`^v\d+\.\d+\.\d+$`)

// notes returns the release notes: the section of CHANGELOG.md about this version or, before a
// release, the unreleased changes, and the digests of the images.
func (b *images) notes() ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(b.root, "CHANGELOG.md"))
	if err != nil {
		return nil, err
	}
	version := strings.TrimPrefix(b.version, "v")
	if !final.MatchString(b.version) {
		version = "Unreleased"
	}
	section := cutSection(string(text), "## ["+version+"]")
	if section == "" {
		return nil, fmt.Errorf("CHANGELOG.md has no section [%s]", version)
	}
	digests, err := b.digests()
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	fmt.Fprintf(&out, "# Sluice %s\n\n%s\n\n## Images\n\n", b.version, strings.TrimSpace(section))
	for _, tag := range b.tags() {
		fmt.Fprintf(&out, "- `sluice:%s@%s`\n", tag, digests[tag])
	}
	fmt.Fprintf(&out, "\nFor %s (Windows: amd64). Built from commit %s with %s; docs/releases.md says how to verify them.\n",
		strings.Join(b.arches, " and "), b.commit, b.all[0].program.info.GoVersion)
	return []byte(out.String()), nil
}

// cutSection returns the text between a heading with this prefix and the next heading.
func cutSection(text, heading string) string {
	_, after, found := strings.Cut("\n"+text, "\n"+heading)
	if !found {
		return ""
	}
	_, after, _ = strings.Cut(after, "\n") // the rest of the heading: a date
	section, _, _ := strings.Cut(after, "\n## ")
	return section
}
