package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDemo tells the whole story. Every step of it fails by itself when something is not as it should be.
func TestDemo(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs a real etcd and kube-apiserver, which -short leaves out")
	}
	repository, err := findRepository()
	if err != nil {
		t.Fatal(err)
	}
	programs := t.TempDir()
	for name, source := range map[string]string{"pinniped": "./cmd/pinniped", "pinniped-agent": "./cmd/agent"} {
		build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(programs, name), source)
		build.Dir = repository
		if output, err := build.CombinedOutput(); err != nil {
			t.Fatalf("building %s: %v\n%s", name, err, output)
		}
	}
	var out bytes.Buffer
	d := newDemo(&screen{out: &out}, repository)
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
		"   ✓ the watch went on, on the connection it had",
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("the line %q is missing:\n%s", line, text)
		}
	}
}

func TestWrap(t *testing.T) {
	t.Parallel()
	got := wrap("one  two three-is-too-long für vier", 9)
	want := []string{"one two", "three-is-too-long", "für vier"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestQuote(t *testing.T) {
	t.Parallel()
	for _, word := range []string{
		"plain-word_1.2/3:4=@,+%", "", "two words", "$HOME", "it's", "a\nb", `"\`, "*", "~", "#", "ü",
	} {
		output, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+quote(word)).Output()
		if err != nil || string(output) != word {
			t.Errorf("quote(%q) = %s, which sh reads as %q (%v)", word, quote(word), output, err)
		}
	}
	if got := quote("plain-word_1.2/3:4=@,+%"); got != "plain-word_1.2/3:4=@,+%" {
		t.Errorf("a plain word is quoted: %s", got)
	}
}

func TestOutputIsIndented(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	w := (&screen{out: &out}).output()
	for _, piece := range []string{"a", "b\nc", "\n", "\nd\n"} {
		if n, err := w.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatalf("Write: %d, %v", n, err)
		}
	}
	if diff := cmp.Diff("   ab\n   c\n   \n   d\n", out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
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
	(&screen{out: &out, colour: true}).title("Title")
	if diff := cmp.Diff("\n\x1b[1m1. Title\x1b[0m\n", out.String()); diff != "" {
		t.Errorf("title (-want +got):\n%s", diff)
	}
}

func TestLastOfEach(t *testing.T) {
	t.Parallel()
	got := lastOfEach([]string{"A=1", "B=2", "A=3", "C=", "B=4=5"})
	if diff := cmp.Diff([]string{"A=3", "C=", "B=4=5"}, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestTail(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff("äb…\nc", tail("one\näbc\nc\n\n", 2, 3)); diff != "" {
		t.Errorf("tail (-want +got):\n%s", diff)
	}
}

// What a command must not do is noticed.
func TestShell(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := &shell{screen: &screen{out: &out}, dir: t.TempDir(), env: os.Environ()}
	tests := []struct {
		name    string
		do      func() error
		wantErr string // no error when empty
	}{
		{name: "runs a command", do: func() error { _, err := s.run(t.Context(), "true"); return err }},
		{
			name:    "notices a failure",
			do:      func() error { _, err := s.run(t.Context(), "exit 3"); return err },
			wantErr: `running "exit 3": exit status 3`,
		},
		{name: "wants a failure", do: func() error { return s.fails(t.Context(), "echo Forbidden >&2; false", "Forbidden") }},
		{
			name:    "misses a failure",
			do:      func() error { return s.fails(t.Context(), "echo Forbidden", "Forbidden") },
			wantErr: "succeeded",
		},
		{
			name:    "wants the right failure",
			do:      func() error { return s.fails(t.Context(), "echo other; false", "Forbidden") },
			wantErr: `did not say "Forbidden"`,
		},
		{
			name:    "gives up when it never succeeds",
			do:      func() error { _, err := s.soon(t.Context(), "echo no; false", 1); return err },
			wantErr: `running "echo no; false" for 1ns`,
		},
		{
			name: "sees what a command prints in the background",
			do: func() error {
				b, err := s.start(t.Context(), "sleep 600")
				if err != nil {
					return err
				}
				defer b.stop()
				return b.waitFor(t.Context(), "never", 1)
			},
			wantErr: `waiting until it prints "never"`,
		},
		{
			name: "notices that a command in the background ends",
			do: func() error {
				b, err := s.start(t.Context(), "echo bye")
				if err != nil {
					return err
				}
				defer b.stop()
				return b.waitFor(t.Context(), "hello", patience)
			},
			wantErr: `it ended before it printed "hello"`,
		},
	}
	for _, test := range tests { // one after the other: they share the screen
		t.Run(test.name, func(t *testing.T) {
			err := test.do()
			if test.wantErr == "" && err != nil ||
				test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)) {
				t.Errorf("want error %q, got %v", test.wantErr, err)
			}
		})
	}
}
