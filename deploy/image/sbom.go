package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"runtime/debug"
	"strings"
)

// spdx is an SPDX 2.3 document, with the fields that we use.
type spdx struct {
	SPDXVersion       string             `json:"spdxVersion"`
	DataLicense       string             `json:"dataLicense"`
	SPDXID            string             `json:"SPDXID"`
	Name              string             `json:"name"`
	DocumentNamespace string             `json:"documentNamespace"`
	CreationInfo      spdxCreation       `json:"creationInfo"`
	Packages          []spdxPackage      `json:"packages"`
	Relationships     []spdxRelationship `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	SPDXID           string         `json:"SPDXID"`
	Name             string         `json:"name"`
	VersionInfo      string         `json:"versionInfo,omitempty"`
	DownloadLocation string         `json:"downloadLocation"`
	FilesAnalyzed    bool           `json:"filesAnalyzed"`
	LicenseConcluded string         `json:"licenseConcluded"`
	LicenseDeclared  string         `json:"licenseDeclared"`
	CopyrightText    string         `json:"copyrightText"`
	SourceInfo       string         `json:"sourceInfo,omitempty"`
	Comment          string         `json:"comment,omitempty"`
	Purpose          string         `json:"primaryPackagePurpose,omitempty"`
	Checksums        []spdxChecksum `json:"checksums,omitempty"`
	ExternalRefs     []spdxRef      `json:"externalRefs,omitempty"`
}

type spdxChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type spdxRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// add appends a package that is contained in another one, and returns its ID.
func (s *spdx) add(owner, relation string, p spdxPackage, purl string) string {
	p.SPDXID = "SPDXRef-" + notInID.ReplaceAllString(p.Name+"-"+p.VersionInfo, "-")
	p.LicenseConcluded, p.CopyrightText = "NOASSERTION", "NOASSERTION"
	p.LicenseDeclared = cmp.Or(p.LicenseDeclared, "NOASSERTION")
	p.DownloadLocation = "NOASSERTION"
	if purl != "" {
		p.ExternalRefs = []spdxRef{{"PACKAGE-MANAGER", "purl", purl}}
	}
	s.Packages = append(s.Packages, p)
	s.Relationships = append(s.Relationships, spdxRelationship{owner, relation, p.SPDXID})
	return p.SPDXID
}

// sbom lists the contents of an image: the modules recorded in the binary, the standard library,
// and the Debian packages.
func (r *release) sbom(img *image) ([]byte, error) {
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	name := img.fileName()
	s := &spdx{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", Name: name,
		DocumentNamespace: "https://spdx.org/spdxdocs/" + name + "-" + digest.Hex,
		CreationInfo:      spdxCreation{r.date.Format("2006-01-02T15:04:05Z"), []string{"Tool: sluice/deploy/image"}},
	}
	whole := spdxPackage{
		Name: "sluice-image-" + img.program.os + "-" + img.program.arch, VersionInfo: img.tag, Purpose: "CONTAINER", LicenseDeclared: "NOASSERTION",
		Checksums: []spdxChecksum{{"SHA256", digest.Hex}},
	}
	oci := fmt.Sprintf("pkg:oci/sluice@%s?arch=%s&os=%s&tag=%s", url.QueryEscape(digest.String()), img.program.arch, img.program.os, url.QueryEscape(img.tag))
	root := s.add(s.SPDXID, "DESCRIBES", whole, oci)
	r.addModules(s, root, img)
	if img.debian != nil {
		img.debian.describe(s, root)
	}
	return encode(s)
}

// addModules adds the binary and the modules linked into it.
func (r *release) addModules(s *spdx, root string, img *image) {
	b := img.program
	sum := sha256.Sum256(b.text)
	daemon := s.add(root, "CONTAINS", spdxPackage{
		Name: "sluice", VersionInfo: r.version, Purpose: "APPLICATION", LicenseDeclared: "Apache-2.0",
		SourceInfo: "commit " + r.commit, Comment: img.entrypoint(), Checksums: []spdxChecksum{{"SHA256", hex.EncodeToString(sum[:])}},
	}, "pkg:generic/sluice@"+url.PathEscape(r.version))
	version := strings.TrimPrefix(b.info.GoVersion, "go")
	s.add(daemon, "DEPENDS_ON", spdxPackage{Name: "stdlib", VersionInfo: version, LicenseDeclared: "BSD-3-Clause"}, "pkg:golang/stdlib@"+version)
	for _, m := range b.info.Deps {
		for m.Replace != nil {
			m = m.Replace
		}
		s.add(daemon, "DEPENDS_ON", spdxPackage{Name: m.Path, VersionInfo: m.Version, Comment: "go.sum " + m.Sum, Purpose: "LIBRARY"}, modulePURL(m))
	}
}

func modulePURL(m *debug.Module) string {
	return "pkg:golang/" + strings.ToLower(m.Path) + "@" + url.QueryEscape(m.Version)
}

// describe adds each Debian package.
func (d *debian) describe(s *spdx, root string) {
	for _, p := range d.packages {
		s.add(root, "CONTAINS", spdxPackage{
			Name: p.field("Package"), VersionInfo: p.field("Version"),
			SourceInfo: "source " + cmp.Or(p.field("Source"), p.field("Package")), Checksums: []spdxChecksum{{"SHA256", p.sha256}},
		}, d.purl(&p))
	}
}

// purl returns the package URL of a package of the distribution.
func (d *debian) purl(p *debPackage) string {
	id, version := d.released("ID"), d.released("VERSION_ID")
	return fmt.Sprintf("pkg:deb/%s/%s@%s?arch=%s&distro=%[1]s-%[5]s", id, p.field("Package"), url.QueryEscape(p.field("Version")), p.field("Architecture"), version)
}

// released returns a variable of os-release.
func (d *debian) released(name string) string {
	for line := range strings.Lines(string(d.osRelease)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
			return strings.Trim(value, `"`)
		}
	}
	return ""
}

// encode returns indented JSON.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return b.Bytes(), err
}
