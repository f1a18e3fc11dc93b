// Package license finds the licenses of Go modules in the module cache, where Go has put what programs are built of.
package license

import (
	"cmp"
	"go/build"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/mod/module"
)

// Unknown is what SPDX says where a license is not known.
const Unknown = "NOASSERTION"

// texts are phrases by which licenses are told, as whitespace-separated words in lower case. The first that fits is it.
var texts = []struct{ id, phrase string }{
	{"Apache-2.0", "apache license version 2.0"},
	{"MPL-2.0", "mozilla public license version 2.0"},
	{"MPL-2.0", "mozilla public license, version 2.0"},
	{"ISC", "permission to use, copy, modify, and/or distribute this software for any purpose with or without fee"},
	{"ISC", "permission to use, copy, modify, and distribute this software for any purpose with or without fee"},
	{"MIT", "permission is hereby granted, free of charge, to any person obtaining a copy of this software"},
	{"BSD-3-Clause", "redistribution and use in source and binary forms"}, // unless it lacks the third clause
}

const thirdClause = "be used to endorse or promote products derived from"

var file = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.\-_].*)?$`)

// Text is a file of a module.
type Text struct{ Name, Content string }

// License is what a module says about its use.
type License struct {
	Module string // path@version
	ID     string // of SPDX, or Unknown
	Texts  []Text // of the files at its root, by name
}

// Cache is the folder with the modules that Go has unpacked.
func Cache() string {
	return cmp.Or(os.Getenv("GOMODCACHE"), filepath.Join(filepath.SplitList(build.Default.GOPATH)[0], "pkg", "mod"))
}

// Of reads the license of a module. One that is not in the cache has no texts.
func Of(cache string, m *debug.Module) (License, error) {
	if m.Replace != nil {
		m = m.Replace
	}
	found := License{Module: m.Path + "@" + m.Version, ID: Unknown}
	path, err := module.EscapePath(m.Path)
	if err != nil {
		return found, nil //nolint:nilerr // a folder, in place of a module
	}
	version, err := module.EscapeVersion(m.Version)
	if err != nil {
		return found, nil //nolint:nilerr // the same
	}
	folder := filepath.Join(cache, filepath.FromSlash(path)+"@"+version)
	entries, err := os.ReadDir(folder)
	if os.IsNotExist(err) {
		return found, nil
	}
	if err != nil {
		return found, err
	}
	var ids []string
	for _, entry := range entries {
		if entry.IsDir() || !file.MatchString(entry.Name()) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			return found, err
		}
		found.Texts = append(found.Texts, Text{entry.Name(), string(content)})
		if id := Identify(string(content)); id != Unknown && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	if len(ids) > 0 {
		found.ID = strings.Join(ids, " AND ")
	}
	return found, nil
}

// Identify tells which license a text is, or Unknown.
func Identify(text string) string {
	words := strings.ToLower(strings.Join(strings.Fields(text), " "))
	for _, known := range texts {
		if !strings.Contains(words, known.phrase) {
			continue
		}
		if known.id == "BSD-3-Clause" && !strings.Contains(words, thirdClause) {
			return "BSD-2-Clause"
		}
		return known.id
	}
	return Unknown
}
