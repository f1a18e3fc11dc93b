// Package spdx lists the Go modules of a program as an SPDX document, from what the Go linker wrote into the program.
package spdx

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
	"github.com/spdx/tools-golang/spdxlib"

	"github.com/pinniped-toolkit/pinniped/hack/sbom/license"
)

// Program is a program that Go has built, with what its linker wrote into it.
type Program struct {
	Path    string // where its file is
	Version string // of the product; empty is the version of its main module
	Info    *debug.BuildInfo
}

// Read opens the program at path. A file that Go has not built, or one whose build information was removed, is an error.
func Read(path, version string) (*Program, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the build information of %q: %w", path, err)
	}
	if version == "" {
		version = info.Main.Version
	}
	return &Program{Path: path, Version: version, Info: info}, nil
}

// Setting returns a setting of the build, such as GOOS, GOARCH, vcs.revision or vcs.time. An unknown one is empty.
func (p *Program) Setting(key string) string {
	for _, s := range p.Info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// Document is an SPDX 2.3 document in JSON. It lists the program, the Go standard library, and each module that is linked
// in, with its version and its checksum of go.sum. The same program gives the same bytes: the time in the document is
// that of the commit, and its name follows from the program's SHA-256.
func (p *Program) Document() ([]byte, error) {
	content, err := os.ReadFile(p.Path)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	name := filepath.Base(p.Path)

	created := p.Setting("vcs.time")
	if created == "" {
		created = "1970-01-01T00:00:00Z" // built outside of a repository: no time is known, and SPDX wants one
	}
	program := modulePackage("Program", p.Info.Main.Path, p.Version)
	program.PackageName = name
	program.PackageFileName = name
	program.PrimaryPackagePurpose = "APPLICATION"
	program.PackageLicenseDeclared = "Apache-2.0"
	program.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: digest}}
	library := modulePackage("Stdlib", "stdlib", strings.TrimPrefix(p.Info.GoVersion, "go"))
	library.PackageLicenseDeclared = "BSD-3-Clause"
	document := &v2_3.Document{
		SPDXVersion:       v2_3.Version,
		DataLicense:       v2_3.DataLicense,
		SPDXIdentifier:    "DOCUMENT",
		DocumentName:      fmt.Sprintf("%s-%s-%s-%s", name, p.Version, p.Setting("GOOS"), p.Setting("GOARCH")),
		DocumentNamespace: fmt.Sprintf("https://%s/sbom/%s", p.Info.Main.Path, digest),
		CreationInfo: &v2_3.CreationInfo{
			Created:  created,
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "pinniped-hack-sbom"}},
		},
		Packages: []*v2_3.Package{program, library},
		Relationships: []*v2_3.Relationship{
			relationship("DOCUMENT", "DESCRIBES", "Program"), relationship("Program", "DEPENDS_ON", "Stdlib"),
		},
	}
	for i, module := range p.Info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		id := fmt.Sprintf("Module-%d", i+1)
		dependency := modulePackage(id, module.Path, module.Version)
		if module.Sum != "" {
			dependency.PackageComment = "go.sum " + module.Sum
		}
		declared, err := license.Of(license.Cache(), module)
		if err != nil {
			return nil, fmt.Errorf("reading the license of %s: %w", module.Path, err)
		}
		dependency.PackageLicenseDeclared = declared.ID
		document.Packages = append(document.Packages, dependency)
		document.Relationships = append(document.Relationships, relationship("Program", "DEPENDS_ON", id))
	}
	if err := spdxlib.ValidateDocument(document); err != nil {
		return nil, fmt.Errorf("checking the SPDX document of %q: %w", p.Path, err)
	}
	var out bytes.Buffer
	if err := json.Write(document, &out, json.Indent(" ")); err != nil {
		return nil, fmt.Errorf("writing the SPDX document of %q: %w", p.Path, err)
	}
	return out.Bytes(), nil
}

// modulePackage is a Go module as a package of SPDX. Scanners for vulnerabilities find it by its package URL.
func modulePackage(id, path, version string) *v2_3.Package {
	return &v2_3.Package{
		PackageName:               path,
		PackageSPDXIdentifier:     common.ElementID(id),
		PackageVersion:            version,
		PackageDownloadLocation:   "NOASSERTION",
		IsFilesAnalyzedTagPresent: true,
		PackageLicenseConcluded:   "NOASSERTION",
		PackageLicenseDeclared:    "NOASSERTION",
		PackageCopyrightText:      "NOASSERTION",
		PackageExternalReferences: []*v2_3.PackageExternalReference{{
			Category: common.CategoryPackageManager,
			RefType:  common.TypePackageManagerPURL,
			Locator:  fmt.Sprintf("pkg:golang/%s@%s", path, version),
		}},
	}
}

func relationship(from, kind, to string) *v2_3.Relationship {
	return &v2_3.Relationship{
		RefA:         common.MakeDocElementID("", from),
		RefB:         common.MakeDocElementID("", to),
		Relationship: kind,
	}
}
