//go:build unix

package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/pinniped-toolkit/pinniped/internal/cli"
	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
	"github.com/pinniped-toolkit/pinniped/test/testkit/issuer"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// inputs are the flags that name input files.
var inputs = []string{
	"admin-kubeconfig",
	"ca-bundle",
	"cert",
	"key",
	"kubeconfig",
	"kubeconfigs",
	"oidc-ca-bundle",
	"report",
}

// needs lists the other arguments that a command, or one of its flags, requires.
var needs = map[string][]string{
	"ip-tls check --cert":            {"--key", "KEY"},
	"ip-tls check --key":             {"--cert", "CERT"},
	"ip-tls set --cert":              {"--key", "KEY"},
	"ip-tls set --key":               {"--cert", "CERT"},
	"ip-tls set":                     {"--secret", "s"},
	"ip-tls rotate":                  {"--secret", "s"},
	"ip-tls manifest":                {"--issuer", "Issuer/i", "--secret", "s"},
	"ip-tls delegate":                {"a/b"},
	"ip-tls explain":                 {"a/b"},
	"explain":                        {"a/b"},
	"get kubeconfig":                 {"--static-token", "t", "-o", os.DevNull},
	"kubeconfig rotate":              {"FOLDER"},
	"kubeconfig rotate --kubeconfig": {"--from", "capi"},
	"login oidc":                     {"--issuer", "https://127.0.0.1:1"},
	"logout --ca-bundle":             {"--issuer", "https://127.0.0.1:1"},
	"run":                            {"--", "true"},
}

// TestPipes passes each input file of every command as a pipe that can be read once, and wants the same result as for a
// regular file.
func TestPipes(t *testing.T) {
	t.Parallel()
	idp := issuer.New(t)
	kubeconfig := "apiVersion: v1\nkind: Config\ncurrent-context: c\n" +
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: t}}]\n" +
		"clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n"
	content := func(flag string) string {
		switch flag {
		case "ca-bundle", "cert", "oidc-ca-bundle", "key":
			return string(idp.CA)
		case "report":
			return "{}"
		case "PINNIPED_CONFIG":
			return "kubeconfig-context: other"
		}
		return kubeconfig
	}
	var rows [][]string // command and flag
	for _, cmd := range commands() {
		path := strings.TrimPrefix(cmd.CommandPath(), "pinniped ")
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			if slices.Contains(inputs, flag.Name) {
				rows = append(rows, []string{path, flag.Name})
			}
		})
	}
	if len(rows) < 25 {
		t.Fatalf("the tree has only %d commands with input files", len(rows))
	}
	rows = append(rows, []string{"kubeconfig ls", ""}, []string{"whoami", "KUBECONFIG"},
		[]string{"whoami", "PINNIPED_CONFIG"})
	for _, row := range rows {
		t.Run(row[0]+" "+row[1], func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			for name, flag := range map[string]string{
				"KEY": "key", "CERT": "cert", "file": row[1], ".kube/config": "",
			} {
				path := filepath.Join(folder, name)
				must.Do(t, os.MkdirAll(filepath.Dir(path), 0o700))
				must.Do(t, os.WriteFile(path, []byte(content(flag)), 0o600))
			}
			pipe := filepath.Join(folder, "pipe")
			must.Do(t, syscall.Mkfifo(pipe, 0o600))
			go func() {
				if file, err := os.OpenFile(pipe, os.O_WRONLY, 0); err == nil {
					_, _ = file.WriteString(content(row[1]))
					_ = file.Close()
				}
			}()
			outcome := func(path string) string {
				args := strings.Fields(row[0])
				environment := map[string]string{}
				switch {
				case row[1] == "":
					args = append(args, path)
				case row[1] == strings.ToUpper(row[1]):
					environment[row[1]] = path
				default:
					args = append(args, "--"+row[1], path)
				}
				for _, arg := range slices.Concat(needs[row[0]+" --"+row[1]], needs[row[0]]) {
					switch arg {
					case "KEY", "CERT":
						arg = filepath.Join(folder, arg)
					case "FOLDER":
						arg = filepath.Join(folder, ".kube")
					}
					args = append(args, arg)
				}
				f, out, errOut := newFactory(args...)
				f.Inputs = &atomicfile.Inputs{}
				f.Getenv = func(name string) string { return environment[name] }
				f.HomeDir = func() (string, error) { return folder, nil }
				code := make(chan int, 1)
				go func() { code <- cli.Main(t.Context(), f) }()
				select {
				case code := <-code:
					text := strings.ReplaceAll(fmt.Sprintf("%d\n%s%s", code, out, errOut), path, "FILE")
					return regexp.MustCompile(`[0-9.]+m?s`).ReplaceAllString(text, "TIME")
				case <-time.After(30 * time.Second):
					t.Fatal("it waits")
				}
				return ""
			}
			want := outcome(filepath.Join(folder, "file"))
			if got := outcome(pipe); got != want {
				t.Errorf("regular file: %s\npipe: %s", want, got)
			}
		})
	}
}
