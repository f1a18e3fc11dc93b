package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/internal/scenario"
)

// TestDemo runs the whole scenario. Every step checks its result. All programs reject cryptography that FIPS 140-3 does
// not approve, because certificates, logins, renewals and checks need none.
func TestDemo(t *testing.T) {
	t.Setenv("GODEBUG", "fips140=only")
	if testing.Short() {
		t.Skip("needs a real etcd and kube-apiserver, which -short leaves out")
	}
	repository, err := findRepository()
	if err != nil {
		t.Fatal(err)
	}
	programs := t.TempDir()
	if err := devinstall.Build(t.Context(), repository, programs); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	d := newDemo(&scenario.Screen{Out: &out}, repository)
	d.programs, d.dir = programs, t.TempDir()
	err = d.tell(t.Context(), patience)
	if err == nil {
		d.explainKeep()
	}
	if stopErr := d.stop(); stopErr != nil {
		t.Error(stopErr)
	}
	text := out.String()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if strings.Contains(text, "\x1b[") {
		t.Error("colours, but this is no terminal")
	}
	for _, line := range []string{
		"   $ pinniped ip-tls set --secret impersonation-proxy-tls-serving-cert \\",
		`   Error from server (Forbidden): pods is forbidden: User "pinny" cannot list resource "pods" in API group "" at the cluster scope: ` +
			"decision made by impersonation-proxy.concierge.pinniped.dev",
		"   ✓ pinny is known, and not permitted to do this",
		"   ✓ pinny is permitted to do it now",
		"   Username: pinny",
		"   ✓ all three are the same",
		"   ✓ the fetched kubeconfig logs in; in a browser, https://" + d.endpoint() + " shows these steps",
		"   ✓ the watch went on, on the connection it had",
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("the line %q is missing:\n%s", line, text)
		}
	}
}

func TestColour(t *testing.T) {
	t.Parallel()
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // nothing is written
	if wantsColour(file, func(string) string { return "" }) {
		t.Error("colour in a file")
	}
	var out bytes.Buffer
	(&scenario.Screen{Out: &out, Colour: true}).Title("Title")
	if diff := cmp.Diff("\n\x1b[1m1. Title\x1b[0m\n", out.String()); diff != "" {
		t.Errorf("title (-want +got):\n%s", diff)
	}
}

func TestTail(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff("äb…\nc", tail("one\näbc\nc\n\n", 2, 3)); diff != "" {
		t.Errorf("tail (-want +got):\n%s", diff)
	}
}
