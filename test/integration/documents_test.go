package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/test/testkit/documents"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// reader runs the shell blocks of documents in bash, as the administrator of the cluster. Only values that differ
// between clusters are replaced.
type reader struct {
	*world
	// dir is the working directory. It has deploy and the files that the documents name.
	dir         string
	environment []string
	places      []string // pairs: text of the documents, and its replacement
	stdin       string
}

func (w *world) reader(t *testing.T) *reader {
	t.Helper()
	r := &reader{world: w, dir: t.TempDir()}
	if len(w.agents) > 0 { // the tests' proxy has neither port 443 nor a DNS name
		r.places = []string{"--name proxy.example.com", "--name localhost", "proxy.example.com", w.endpoint()}
	}
	programs := t.TempDir()
	links := map[string]string{
		filepath.Join(programs, "pinniped"): w.cli, filepath.Join(programs, "kubectl"): w.kubectl,
		filepath.Join(r.dir, "deploy"): w.Deploy,
	}
	for link, target := range links {
		must.Do(t, os.Symlink(target, link))
	}
	home := t.TempDir()
	r.environment = []string{
		"PATH=" + programs + string(filepath.ListSeparator) + os.Getenv("PATH"),
		"HOME=" + home,
		"KUBECONFIG=" + w.Cluster.AdminKubeconfig(),
		"TOKEN=pinny:password123",
	}
	return r
}

// notFresh allows breaking existing clients: on a fresh cluster no client uses the generated certificate (TestDemo),
// but the cluster of the tests has such clients.
func (r *reader) notFresh() {
	r.places = append(r.places, "ip-tls set", "ip-tls set --allow OldClientsBreak")
}

// file writes a file into the reader's directory.
func (r *reader) file(t *testing.T, name string, content []byte) {
	t.Helper()
	path := filepath.Join(r.dir, name)
	must.Do(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must.Do(t, os.WriteFile(path, content, 0o600))
}

// program puts a shell script on the reader's PATH, in place of a program that may not be installed.
func (r *reader) program(t *testing.T, name, script string) {
	t.Helper()
	directory := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(directory, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	r.environment[0] = strings.Replace(r.environment[0], "PATH=", "PATH="+directory+string(filepath.ListSeparator), 1)
}

// blocks returns the blocks of a document that name this test. The path of the document is relative to the root of the
// repository: documents.TestEveryShellBlockIsRun searches for it.
func (r *reader) blocks(t *testing.T, document string) []documents.Block {
	t.Helper()
	test, _, _ := strings.Cut(t.Name(), "/")
	var mine []documents.Block
	for _, block := range r.all(t, document) {
		if block.RunBy == test {
			mine = append(mine, block)
		}
	}
	if len(mine) == 0 {
		t.Fatalf("no block of %s says that %s runs it", document, test)
	}
	return mine
}

// all returns the shell blocks of a document.
func (r *reader) all(t *testing.T, document string) []documents.Block {
	t.Helper()
	blocks := must.Get(documents.Read(filepath.Join("..", ".."), document))(t)
	return slices.DeleteFunc(blocks, func(b documents.Block) bool { return !b.ForShell() })
}

// reads runs the blocks of a document that name this test, in order, and returns the output of each. A hook is called
// before the first block that contains its key.
func (r *reader) reads(t *testing.T, document string, hooks map[string]func()) []string {
	t.Helper()
	called := map[string]bool{}
	var printed []string
	for _, block := range r.blocks(t, document) {
		for key, hook := range hooks {
			if !called[key] && strings.Contains(block.Text, key) {
				called[key] = true
				hook()
			}
		}
		printed = append(printed, r.types(t, block))
	}
	for key := range hooks {
		if !called[key] {
			t.Errorf("no block of %s contains %q", document, key)
		}
	}
	return printed
}

// failures makes bash record the line and the exit code of each failed command. The block continues, as for a person.
const failures = `trap 'echo "$? $LINENO" >>"$FAILURES"' ERR
set -o pipefail
`

var promised = regexp.MustCompile(`#.*exit code (\d+)`)

// types runs one block, and returns its output on both streams. Every command must exit with 0, or with the exit code
// in the comment on its line.
func (r *reader) types(t *testing.T, block documents.Block) string {
	t.Helper()
	scratch := t.TempDir()
	prelude, noted, script := filepath.Join(scratch, "prelude"), filepath.Join(scratch, "failures"), filepath.Join(
		scratch,
		"block",
	)
	text := strings.NewReplacer(r.places...).Replace(block.Text)
	if block.Language == "console" {
		text = commandsOf(text)
	}
	for path, content := range map[string]string{prelude: failures, script: text} {
		must.Do(t, os.WriteFile(path, []byte(content), 0o600))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	bash := exec.CommandContext(ctx, "bash", script)
	bash.Dir = r.dir
	bash.Env = append(append([]string{}, r.environment...), "BASH_ENV="+prelude, "FAILURES="+noted)
	bash.Stdin = strings.NewReader(r.stdin)
	output, _ := bash.CombinedOutput() // checked for each command
	if ctx.Err() != nil {
		t.Fatalf("%s did not end:\n%s%s", block, text, output)
	}
	ended := map[int]string{} // exit code by line, without 0
	if content, err := os.ReadFile(noted); err == nil {
		for line := range strings.Lines(string(content)) {
			var code, number int
			must.Get(fmt.Sscan(line, &code, &number))(t)
			ended[number] = strconv.Itoa(code)
		}
	}
	first := 1
	for _, line := range logicalLines(text) {
		got := "0"
		for number := first; number < first+strings.Count(line, "\n"); number++ {
			if code, failed := ended[number]; failed {
				got = code
				delete(ended, number)
			}
		}
		first += strings.Count(line, "\n")
		want := "0"
		if match := promised.FindStringSubmatch(line); match != nil {
			want = match[1]
		}
		if got != want {
			t.Errorf("%s: want exit code %s, got %s, of\n%sThe block printed:\n%s", block, want, got, line, output)
		}
	}
	if len(ended) > 0 {
		t.Errorf("%s: lines %v failed\n%s", block, ended, output)
	}
	return string(output)
}

// logicalLines splits a script into lines. A line that ends with a backslash continues on the next one.
func logicalLines(text string) []string {
	var lines []string
	line := ""
	for part := range strings.Lines(text) {
		line += part
		if !strings.HasSuffix(part, "\\\n") {
			lines, line = append(lines, line), ""
		}
	}
	return lines
}

// commandsOf returns the commands of a transcript.
func commandsOf(transcript string) string {
	typed := ""
	for line := range strings.Lines(transcript) {
		if rest, found := strings.CutPrefix(line, "$ "); found {
			typed += rest
		}
	}
	return typed
}
