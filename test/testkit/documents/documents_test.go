package documents

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

var root = filepath.Join("..", "..", "..")

func TestBlocks(t *testing.T) {
	t.Parallel()
	const source = "# Title\n\n<!-- run by TestA -->\n```shell\necho a\n```\n\n- item\n\n  <!-- not run: no reason -->\n" +
		"  ```sh\n  echo b\n  echo c\n  ```\n\ntext\n\n```console\n$ echo d\n```\n\n```\nkubectl get pods\n```\n\n" +
		"```yaml\nkubectl: a\n```\n\n```text\nhello\n```\n"
	type seen struct {
		Block
		ForShell bool
	}
	var got []seen
	for _, block := range parse("a.md", []byte(source)) {
		got = append(got, seen{block, block.ForShell()})
	}
	want := []seen{
		{Block{Path: "a.md", Line: 5, Language: "shell", Text: "echo a\n", RunBy: "TestA"}, true},
		{Block{Path: "a.md", Line: 12, Language: "sh", Text: "echo b\necho c\n", NotRun: "no reason"}, true},
		{Block{Path: "a.md", Line: 19, Language: "console", Text: "$ echo d\n"}, true},
		{Block{Path: "a.md", Line: 23, Text: "kubectl get pods\n"}, true},
		{Block{Path: "a.md", Line: 27, Language: "yaml", Text: "kubectl: a\n"}, false},
		{Block{Path: "a.md", Line: 31, Language: "text", Text: "hello\n"}, false},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
}

// TestEveryShellBlockIsRun fails for a block that no test runs without a reason, and for a block that names a test that
// does not exist or does not read this document.
func TestEveryShellBlockIsRun(t *testing.T) {
	t.Parallel()
	tests := testFunctions(t)
	paths := must.Get(Paths(root))(t)
	ran, explained := 0, 0
	for _, path := range paths {
		blocks := must.Get(Read(root, path))(t)
		for _, block := range blocks {
			switch {
			case !block.ForShell():
			case block.RunBy != "":
				ran++
				if text, ok := tests[block.RunBy]; !ok {
					t.Errorf("%s is run by %s, and there is no such test", block, block.RunBy)
				} else if !strings.Contains(text, `"`+path+`"`) {
					t.Errorf("%s is run by %s, whose file does not name %q", block, block.RunBy, path)
				}
			case block.NotRun != "":
				explained++
			default:
				t.Errorf("%s needs <!-- run by TestNAME --> or <!-- not run: REASON --> directly above it", block)
			}
		}
	}
	t.Logf("%d blocks in %d documents are run by tests, %d say why they are not", ran, len(paths), explained)
	if ran == 0 {
		t.Error("no block is run")
	}
}

// testFunctions maps the names of the repository's tests to the source of their files.
func testFunctions(t *testing.T) map[string]string {
	t.Helper()
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	found := map[string]string{}
	must.Do(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "bin" || entry.Name() == "node_modules" || entry.Name() == ".git"):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		content, err := os.ReadFile(path)
		for _, match := range declaration.FindAllStringSubmatch(string(content), -1) {
			found[match[1]] = string(content)
		}
		return err
	}))
	return found
}
