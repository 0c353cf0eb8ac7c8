package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestSBOM wants every module that a binary says it has, the standard library and
// every package of Debian, and a document that readers of SPDX 2.3 accept.
func TestSBOM(t *testing.T) {
	for _, img := range built(t).all {
		var s spdx
		decode(t, img.sbom, &s)
		if s.SPDXVersion != "SPDX-2.3" || s.DataLicense != "CC0-1.0" || s.SPDXID != "SPDXRef-DOCUMENT" || s.CreationInfo.Created != "2023-11-14T22:13:20Z" {
			t.Errorf("%s: %+v", img.fileName(), s)
		}
		checkReferences(t, &s)
		purls := map[string]bool{}
		for _, p := range s.Packages {
			for _, ref := range p.ExternalRefs {
				purls[ref.Locator] = true
			}
		}
		at := "usr/local/bin/sluice"
		if img.program.os == "windows" {
			at = "Files/sluice.exe"
		}
		info, err := buildinfo.Read(bytes.NewReader(contents(t, img)[at].text))
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"pkg:golang/stdlib@" + strings.TrimPrefix(info.GoVersion, "go"), "pkg:generic/sluice@v9.8.7-rc.1"}
		for _, m := range info.Deps {
			want = append(want, "pkg:golang/"+strings.ToLower(m.Path)+"@"+strings.ReplaceAll(m.Version, "+", "%2B"))
		}
		if len(want) < 30 {
			t.Errorf("%s: the binary names %d modules only", img.fileName(), len(want))
		}
		if img.debian != nil {
			want = append(want, "pkg:deb/debian/netbase@")
			for name := range contents(t, img) {
				if p, ok := strings.CutPrefix(name, "var/lib/dpkg/status.d/"); ok {
					want = append(want, "pkg:deb/debian/"+p+"@")
				}
			}
		}
		for _, w := range want {
			if !purls[w] && !(strings.HasSuffix(w, "@") && hasPrefix(purls, w)) {
				t.Errorf("%s: the SBOM lacks %s", img.fileName(), w)
			}
		}
	}
}

func hasPrefix(all map[string]bool, prefix string) bool {
	for s := range all {
		if strings.HasPrefix(s, prefix) {
			return true
		}
	}
	return false
}

// checkReferences wants well-formed packages, each with a name of its own, and
// everything reached from the document.
func checkReferences(t *testing.T, s *spdx) {
	t.Helper()
	wellFormed := regexp.MustCompile(`^SPDXRef-[A-Za-z0-9.-]+$`)
	known := map[string]bool{s.SPDXID: true}
	for _, p := range s.Packages {
		if known[p.SPDXID] || !wellFormed.MatchString(p.SPDXID) || p.Name == "" || p.VersionInfo == "" || p.DownloadLocation == "" || p.LicenseConcluded == "" || p.CopyrightText == "" {
			t.Errorf("package %+v", p)
		}
		known[p.SPDXID] = true
	}
	reached := map[string]bool{}
	for _, r := range s.Relationships {
		if !known[r.Element] || !known[r.Related] {
			t.Errorf("relationship %+v is with nobody", r)
		}
		reached[r.Related] = true
	}
	if len(reached) != len(s.Packages) {
		t.Errorf("%d packages, %d are somebody's", len(s.Packages), len(reached))
	}
}

// TestProvenance wants the digests of what was built, and all it was built of.
func TestProvenance(t *testing.T) {
	b := built(t)
	text, err := b.provenance()
	if err != nil {
		t.Fatal(err)
	}
	var s statement
	decode(t, text, &s)
	if s.Type != "https://in-toto.io/Statement/v1" || s.PredicateType != "https://slsa.dev/provenance/v1" || s.Predicate.RunDetails.Builder.ID == "" || s.Predicate.BuildDefinition.BuildType == "" {
		t.Errorf("%+v", s)
	}
	var want []string
	for _, tag := range b.tags() {
		digest, err := b.index(tag).Digest()
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, digest.Hex)
	}
	for _, img := range b.all {
		digest, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, digest.Hex)
	}
	var got []string
	for _, r := range s.Subject {
		got = append(got, r.Digest["sha256"])
	}
	if !slices.Equal(got, want) {
		t.Errorf("subjects %v, want %v", got, want)
	}
	checkMaterials(t, b, s.Predicate.BuildDefinition.ResolvedDependencies)
	for i, img := range b.all {
		if s.Predicate.RunDetails.Byproducts[i].Digest["sha256"] != digested("", img.sbom).Digest["sha256"] {
			t.Errorf("%s: another SBOM is named", img.fileName())
		}
	}
}

func checkMaterials(t *testing.T, b *images, materials []resource) {
	t.Helper()
	sums, err := os.ReadFile("../../go.sum")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{b.commit, digested("", sums).Digest["sha256"]}
	for _, img := range b.all {
		if img.debian != nil {
			for _, p := range img.debian.packages {
				want = append(want, p.sha256)
			}
		}
	}
	got := map[string]bool{}
	for _, m := range materials {
		got[m.Digest["sha256"]+m.Digest["gitCommit"]] = true
	}
	for _, w := range want {
		if !got[w] {
			t.Errorf("%s is not among the materials", w)
		}
	}
	if !slices.ContainsFunc(materials, func(r resource) bool { return strings.HasPrefix(r.URI, "pkg:generic/go@1.") }) {
		t.Error("the version of Go is not among the materials")
	}
}

// TestNotes wants the section of the version, else what is unreleased, and never
// that of another version.
func TestNotes(t *testing.T) {
	const text = "# Changelog\n\n## [Unreleased]\n\n- new\n\n## [1.2.10] - 2026-01-02\n\n- ten\n\n## [1.2.1] - 2026-01-01\n\n### Added\n\n- one\n"
	for heading, want := range map[string]string{"## [1.2.1]": "### Added\n\n- one", "## [1.2.10]": "- ten", "## [Unreleased]": "- new", "## [1.2]": ""} {
		if got := strings.TrimSpace(cutSection(text, heading)); got != want {
			t.Errorf("%s is %q, want %q", heading, got, want)
		}
	}
	b := built(t)
	notes, err := b.notes()
	if err != nil {
		t.Fatal(err)
	}
	digests, err := b.digests()
	if err != nil {
		t.Fatal(err)
	}
	for tag, digest := range digests {
		if want := "`sluice:" + tag + "@" + digest.String() + "`"; !strings.Contains(string(notes), want) {
			t.Errorf("the notes lack %s", want)
		}
	}
}

// TestNotesOfARelease wants no release that the changelog does not tell of.
func TestNotesOfARelease(t *testing.T) {
	b := *built(t)
	r := *b.release
	b.release, r.version = &r, "v9.8.7"
	if _, err := b.notes(); err == nil || !strings.Contains(err.Error(), "has no section [9.8.7]") {
		t.Errorf("a release without a section: %v", err)
	}
}

func decode(t *testing.T, text []byte, into any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatal(err)
	}
}
