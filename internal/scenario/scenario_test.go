package scenario

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

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
		output, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+Quote(word)).Output()
		if err != nil || string(output) != word {
			t.Errorf("Quote(%q) = %s, which sh reads as %q (%v)", word, Quote(word), output, err)
		}
	}
	if got := Quote("plain-word_1.2/3:4=@,+%"); got != "plain-word_1.2/3:4=@,+%" {
		t.Errorf("a plain word is quoted: %s", got)
	}
}

func TestOutputIsIndented(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	w := (&Screen{Out: &out}).Output()
	for _, piece := range []string{"a", "b\nc", "\n", "\nd\n"} {
		if n, err := w.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatalf("Write: %d, %v", n, err)
		}
	}
	if diff := cmp.Diff("   ab\n   c\n   \n   d\n", out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

// TestShell shows that a command that behaves unexpectedly is an error.
func TestShell(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := &Shell{Screen: &Screen{Out: &out}, Dir: t.TempDir(), Env: os.Environ()}
	tests := []struct {
		name    string
		do      func() error
		wantErr string // empty if none
	}{
		{name: "runs a command", do: func() error { _, err := s.Run(t.Context(), "true"); return err }},
		{
			name:    "notices a failure",
			do:      func() error { _, err := s.Run(t.Context(), "exit 3"); return err },
			wantErr: `running "exit 3": exit status 3`,
		},
		{name: "wants a failure", do: func() error { return s.Fails(t.Context(), "echo Forbidden >&2; false", "Forbidden") }},
		{
			name:    "misses a failure",
			do:      func() error { return s.Fails(t.Context(), "echo Forbidden", "Forbidden") },
			wantErr: "succeeded",
		},
		{
			name:    "wants the right failure",
			do:      func() error { return s.Fails(t.Context(), "echo other; false", "Forbidden") },
			wantErr: `did not say "Forbidden"`,
		},
		{
			name:    "gives up when it never succeeds",
			do:      func() error { _, err := s.Soon(t.Context(), "echo no; false", 1); return err },
			wantErr: `running "echo no; false" for 1ns`,
		},
		{
			name: "sees what a command prints in the background",
			do: func() error {
				b, err := s.Start(t.Context(), "sleep 600")
				if err != nil {
					return err
				}
				defer b.Stop()
				return b.WaitFor(t.Context(), "never", 1)
			},
			wantErr: `waiting until it prints "never"`,
		},
		{
			name: "notices that a command in the background ends",
			do: func() error {
				b, err := s.Start(t.Context(), "echo bye")
				if err != nil {
					return err
				}
				defer b.Stop()
				return b.WaitFor(t.Context(), "hello", time.Minute)
			},
			wantErr: `it ended before it printed "hello"`,
		},
	}
	for _, test := range tests { // sequential: they share the screen
		t.Run(test.name, func(t *testing.T) {
			err := test.do()
			if test.wantErr == "" && err != nil ||
				test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)) {
				t.Errorf("want error %q, got %v", test.wantErr, err)
			}
		})
	}
}

func TestLastOfEach(t *testing.T) {
	t.Parallel()
	got := lastOfEach([]string{"A=1", "B=2", "A=3", "C=", "B=4=5"})
	if diff := cmp.Diff([]string{"A=3", "C=", "B=4=5"}, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}
