package documents

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const columns = 120

var (
	fence    = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	comment  = regexp.MustCompile(`(?s)<!--.*?-->`)
	span     = regexp.MustCompile("`[^`]+`")
	goal     = regexp.MustCompile(`\]\([^)]*\)`) // target of a link
	tableRow = regexp.MustCompile(`^\s*\|`)
)

// retired is a line of hack/words.txt.
type retired struct {
	pattern     *regexp.Regexp
	replacement string
}

func retiredWords(t *testing.T) []retired {
	t.Helper()
	content := must.Get(os.ReadFile(filepath.Join(root, "hack", "words.txt")))(t)
	var words []retired
	for line := range strings.Lines(string(content)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		word, replacement, found := strings.Cut(strings.TrimSpace(line), " -> ")
		if !found {
			t.Fatalf("hack/words.txt: no replacement in %q", line)
		}
		word = strings.ReplaceAll(word, " ", `\s+`)
		words = append(words, retired{regexp.MustCompile(`(?i)\b(?:` + word + `)\b`), replacement})
	}
	return words
}

// review returns the retired words in the prose of a document, and its overlong lines outside tables and code.
func review(source []byte, words []retired) []string {
	blank := func(match []byte) []byte {
		return bytes.Repeat([]byte("\n"), bytes.Count(match, []byte("\n")))
	}
	prose := fence.ReplaceAllFunc(source, blank)
	var found []string
	for i, line := range strings.Split(string(prose), "\n") {
		if width := utf8.RuneCountInString(line); width > columns && !tableRow.MatchString(line) {
			found = append(found, fmt.Sprintf("%d: %d columns, want at most %d", i+1, width, columns))
		}
	}
	for _, ignored := range []*regexp.Regexp{comment, span, goal} {
		prose = ignored.ReplaceAllFunc(prose, blank)
	}
	for _, word := range words {
		for _, at := range word.pattern.FindAllIndex(prose, -1) {
			line := 1 + bytes.Count(prose[:at[0]], []byte("\n"))
			found = append(found, fmt.Sprintf("%d: %q is retired; use: %s", line, prose[at[0]:at[1]], word.replacement))
		}
	}
	return found
}

// reviewMessages returns the retired words in the string literals of a program.
func reviewMessages(path string, words []retired) ([]string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var found []string
	ast.Inspect(file, func(n ast.Node) bool {
		literal, ok := n.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		for _, word := range words {
			if at := word.pattern.FindString(literal.Value); at != "" && strings.Contains(literal.Value, " ") {
				line := files.Position(literal.Pos()).Line
				found = append(found, fmt.Sprintf("%d: %q is retired; use: %s", line, at, word.replacement))
			}
		}
		return true
	})
	return found, nil
}

// TestWords fails for retired words and overlong lines in Markdown files, and for retired words in programs' messages.
func TestWords(t *testing.T) {
	t.Parallel()
	words := retiredWords(t)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && slices.Contains([]string{".git", "bin", "node_modules", "testdata"}, entry.Name()) {
			return fs.SkipDir
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, root+string(filepath.Separator)))
		var problems []string
		switch folder, _, _ := strings.Cut(name, "/"); {
		case strings.HasSuffix(name, ".md"):
			var source []byte
			source, err = os.ReadFile(path)
			problems = review(source, words)
		case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") &&
			slices.Contains([]string{"cmd", "internal", "pkg"}, folder):
			problems, err = reviewMessages(path, words)
		}
		for _, problem := range problems {
			t.Errorf("%s:%s", name, problem)
		}
		return err
	})
	must.Do(t, err)
}

func TestReview(t *testing.T) {
	t.Parallel()
	words := []retired{{regexp.MustCompile(`(?i)\b(?:hand\s+out)\b`), "publish"}}
	long := strings.Repeat("é", columns+1)
	source := "Hand\nout `hand out`, [x](hand out), handout <!-- hand out -->\n" +
		"| " + long + " | hand out |\n```\n" + long + " hand out\n```\n" + long + "\n"
	want := []string{
		"7: 121 columns, want at most 120",
		`1: "Hand\nout" is retired; use: publish`,
		`3: "hand out" is retired; use: publish`,
	}
	if diff := cmp.Diff(want, review([]byte(source), words)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
