package cli_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pinniped-toolkit/pinniped/internal/cli"
	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// newFactory returns a Factory with no environment variables, home directory or network.
func newFactory(args ...string) (f *factory.Factory, out, errOut *bytes.Buffer) {
	out, errOut = &bytes.Buffer{}, &bytes.Buffer{}
	return &factory.Factory{
		IOStreams:    genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: out, ErrOut: errOut},
		Args:         args,
		Getenv:       func(string) string { return "" },
		LookupEnv:    func(string) (string, bool) { return "", false },
		HomeDir:      func() (string, error) { return "", errors.New("no home directory") },
		Executable:   func() (string, error) { return "/usr/bin/pinniped", nil },
		Now:          time.Now,
		SetVerbosity: func(int) {},
	}, out, errOut
}

// commands returns the whole tree.
func commands() (all []*cobra.Command) {
	f, _, _ := newFactory()
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		all = append(all, cmd)
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(cli.New(f))
	return all
}

// TestTree checks that every command has an example, a short description without full stop, and a description of every
// flag.
func TestTree(t *testing.T) {
	t.Parallel()
	for _, cmd := range commands() {
		path := cmd.CommandPath()
		if strings.HasPrefix(path, "pinniped completion") || strings.HasPrefix(path, "pinniped help") {
			continue // belongs to cobra
		}
		if !cmd.Runnable() && !cmd.HasSubCommands() { // a help topic
			continue
		}
		if cmd.Example == "" || cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: want an example and a sentence without full stop, got %q, %q", path, cmd.Example, cmd.Short)
		}
		if cmd.RunE == nil || cmd.Run != nil {
			t.Errorf("%s: want RunE", path)
		}
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			if flag.Usage == "" || strings.HasSuffix(flag.Usage, ".") {
				t.Errorf("%s --%s: want a description without full stop, got %q", path, flag.Name, flag.Usage)
			}
		})
	}
}

// TestTreesAreApart checks that the flags given to one command tree do not change another tree.
func TestTreesAreApart(t *testing.T) {
	t.Parallel()
	first, out, _ := newFactory("version", "-o", "json")
	if code := cli.Main(t.Context(), first); code != ui.ExitDone || !strings.HasPrefix(out.String(), "{") {
		t.Fatalf("want JSON, got %d, %q", code, out)
	}
	second, out, _ := newFactory("version")
	if code := cli.Main(t.Context(), second); code != ui.ExitDone || strings.HasPrefix(out.String(), "{") {
		t.Errorf("want plain text, got %d, %q", code, out)
	}
}

func TestMainPrintsErrorAndHint(t *testing.T) {
	t.Parallel()
	for typed, meant := range map[string]string{"whoamy": "whoami", "status": "ip-tls status"} {
		f, out, errOut := newFactory(typed)
		code := cli.Main(t.Context(), f)
		want := fmt.Sprintf("error: unknown command %q for \"pinniped\"\nhint: did you mean \"pinniped %s\"?\n", typed, meant)
		if code != ui.ExitUsage || errOut.String() != want || out.Len() > 0 {
			t.Errorf("want code 2 and %q, got %d, %q, %q", want, code, errOut, out)
		}
	}
}

func TestMainNamesEveryNearCommand(t *testing.T) {
	t.Parallel()
	f, _, errOut := newFactory("ip-tls", "stat")
	code := cli.Main(t.Context(), f)
	want := `"pinniped ip-tls status"`
	if got := errOut.String(); code != ui.ExitUsage || !strings.Contains(got, want) || !strings.Contains(got, " or ") {
		t.Errorf("want code 2 and %s among several, got %d, %q", want, code, got)
	}
}

func TestMainWithoutArguments(t *testing.T) {
	t.Parallel()
	f, out, _ := newFactory()
	if code := cli.Main(t.Context(), f); code != ui.ExitDone || !strings.Contains(out.String(), "Usage:") {
		t.Errorf("want the help, got %d, %q", code, out)
	}
}

func TestVerbosity(t *testing.T) {
	t.Parallel()
	f, _, _ := newFactory("version", "-v", "6")
	level := 0
	f.SetVerbosity = func(l int) { level = l }
	if code := cli.Main(t.Context(), f); code != ui.ExitDone || level != 6 {
		t.Errorf("want level 6, got %d, code %d", level, code)
	}
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f, _, errOut := newFactory("whoami", "--kubeconfig", "/does/not/exist")
	if code := cli.Main(ctx, f); code != ui.ExitInterrupted || errOut.Len() == 0 {
		t.Errorf("want code 130 and a message, got %d, %q", code, errOut)
	}
}
