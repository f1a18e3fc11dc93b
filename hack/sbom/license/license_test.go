package license

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestIdentify(t *testing.T) {
	t.Parallel()
	const bsd = "Redistribution and use in source and binary forms, with or without\n// modification, are permitted"
	for text, want := range map[string]string{
		"\n            Apache License\n      Version 2.0, January 2004":                                         "Apache-2.0",
		"MIT\n\nPermission is hereby granted, free of charge, to any person obtaining\na copy of this software": "MIT",
		bsd: "BSD-2-Clause",
		bsd + " Neither the name of Google nor the names may be used to endorse or promote\nproducts derived from": "BSD-3-Clause",
		"Mozilla Public License Version 2.0":   "MPL-2.0",
		"All rights reserved. Do not copy it.": Unknown,
	} {
		if got := Identify(text); got != want {
			t.Errorf("got %s, want %s of %q", got, want, text)
		}
	}
}

func TestOf(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	folder := filepath.Join(cache, "example.com", "!team", "module@v1.0.0")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"LICENSE": "Apache License Version 2.0", "NOTICE.txt": "by us", "licenses.go": "package module", "README": "MIT",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Of(cache, &debug.Module{Path: "example.com/Team/module", Version: "v1.0.0"})
	want := License{
		Module: "example.com/Team/module@v1.0.0", ID: "Apache-2.0",
		Texts: []Text{{"LICENSE", "Apache License Version 2.0"}, {"NOTICE.txt", "by us"}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if got, err := Of(
		cache,
		&debug.Module{Path: "example.com/other", Version: "v1.0.0"},
	); err != nil ||
		got.ID != Unknown {
		t.Errorf("of a module that is not there: %+v, %v", got, err)
	}
}
