// Package documents parses the shell blocks of README.md and docs, for the tests that run them. An HTML comment
// directly above a block names the test that runs it, or says why none does:
//
//	<!-- run by TestHowToRotateCA -->
//	<!-- not run: asks for a password at the terminal -->
//
// Rendered Markdown does not show these comments.
package documents

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/text"
)

// Block is a fenced block of code.
type Block struct {
	Path     string // of the document, relative to the root of the repository, with slashes
	Line     int    // of its first line of code
	Language string
	Text     string
	RunBy    string // the test that runs it
	NotRun   string // why no test runs it
}

func (b Block) String() string { return fmt.Sprintf("%s:%d", b.Path, b.Line) }

var marker = regexp.MustCompile(`^<!-- (run by|not run:) (.*) -->$`)

// shells are the languages of shell blocks.
var shells = []string{"sh", "shell", "bash", "zsh", "console", "shell-session"}

// command matches a shell command, whatever the language of its block.
var command = regexp.MustCompile(`(?m)^\s*(\$ |(sudo |export )?(kubectl|pinniped|helm|make|openssl|git|docker|kind) )`)

// ForShell reports whether readers run the block in a shell. Transcripts count, and so do blocks of plain
// text or without a language in which a line begins with a program that the documents use.
func (b Block) ForShell() bool {
	if slices.Contains(shells, b.Language) {
		return true
	}
	return slices.Contains([]string{"", "text", "txt", "plain"}, b.Language) && command.MatchString(b.Text)
}

// Paths returns README.md and every document below docs, except the generated CLI reference.
func Paths(root string) ([]string, error) {
	paths := []string{"README.md"}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		relative = filepath.ToSlash(relative)
		switch {
		case entry.IsDir() && relative == "docs/reference/cli":
			return fs.SkipDir
		case !entry.IsDir() && strings.HasSuffix(relative, ".md"):
			paths = append(paths, relative)
		}
		return nil
	})
	return paths, err
}

// Read returns all fenced blocks of a document.
func Read(root, path string) ([]Block, error) {
	source, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(path)))
	if err != nil {
		return nil, err
	}
	return parse(path, source), nil
}

func parse(path string, source []byte) []Block {
	var blocks []Block
	_ = ast.Walk(
		goldmark.DefaultParser().Parse(text.NewReader(source)),
		func(n ast.Node, entering bool) (ast.WalkStatus, error) {
			fenced, ok := n.(*ast.FencedCodeBlock)
			if !ok || !entering {
				return ast.WalkContinue, nil
			}
			block := Block{Path: path, Language: string(fenced.Language(source))}
			lines := fenced.Lines()
			if lines.Len() > 0 {
				block.Line = 1 + bytes.Count(source[:lines.At(0).Start], []byte("\n"))
			}
			block.Text = string(lines.Value(source))
			if comment, ok := n.PreviousSibling().(*ast.HTMLBlock); ok {
				last := bytes.TrimSpace(comment.Lines().Value(source))
				last = last[bytes.LastIndexByte(last, '\n')+1:]
				if found := marker.FindSubmatch(bytes.TrimSpace(last)); found != nil {
					if string(found[1]) == "run by" {
						block.RunBy = string(found[2])
					} else {
						block.NotRun = string(found[2])
					}
				}
			}
			blocks = append(blocks, block)
			return ast.WalkContinue, nil
		},
	)
	return blocks
}
