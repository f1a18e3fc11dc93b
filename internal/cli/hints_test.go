package cli_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pinniped-toolkit/pinniped/internal/cli"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// hintTexts returns the texts of all hints in the CLI's source, by position.
func hintTexts(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	files := token.NewFileSet()
	for _, root := range []string{".", "../oidclogin"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(files, path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(node ast.Node) bool {
				switch node := node.(type) {
				case *ast.CallExpr:
					if strings.HasSuffix(strings.ToLower(nameOf(node.Fun)), "withhint") && len(node.Args) > 1 {
						for _, argument := range node.Args[1:] {
							found[files.Position(argument.Pos()).String()] = textsIn(argument)
						}
					}
				case *ast.FuncDecl: // functions that return hints
					if strings.HasSuffix(strings.ToLower(node.Name.Name), "hint") && !strings.HasPrefix(node.Name.Name, "With") {
						found[files.Position(node.Pos()).String()] = textsIn(node.Body)
					}
				}
				return true
			})
			return nil
		})
		must.Do(t, err)
	}
	return found
}

func nameOf(function ast.Expr) string {
	switch function := function.(type) {
	case *ast.Ident:
		return function.Name
	case *ast.SelectorExpr:
		return function.Sel.Name
	}
	return ""
}

// textsIn joins the strings in an expression, or in a function, one line per return.
func textsIn(node ast.Node) string {
	var all strings.Builder
	if node == nil {
		return ""
	}
	ast.Inspect(node, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.BasicLit:
			if text, err := strconv.Unquote(node.Value); err == nil && node.Kind == token.STRING {
				all.WriteString(text)
			}
		case ast.Stmt:
			all.WriteString("\n")
		}
		return true
	})
	return all.String()
}

// TestHintsNameCommands checks that the commands and flags in every hint exist, and that each command takes the flags
// that follow it in the hint.
func TestHintsNameCommands(t *testing.T) {
	t.Parallel()
	f, _, _ := newFactory()
	root := cli.New(f)
	known := map[string]bool{"--help": true}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.InitDefaultHelpFlag()
		cmd.Flags().VisitAll(func(flag *pflag.Flag) { known["--"+flag.Name] = true })
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
	command := regexp.MustCompile(`pinniped( [a-z-]+)+[^";\n]*`)
	flags := regexp.MustCompile(`--[a-z][a-z-]+`)
	others := regexp.MustCompile(`(kubectl|openssl|cmctl|helm) [^"\n]*`)
	texts := hintTexts(t)
	if len(texts) < 100 {
		t.Fatalf("only %d hints were found", len(texts))
	}
	for place, text := range texts {
		text = others.ReplaceAllString(text, "")
		for _, flag := range flags.FindAllString(text, -1) {
			if !known[flag] && flag != "--%s" {
				t.Errorf("%s: no command has %s: %s", place, flag, text)
			}
		}
		for _, line := range command.FindAllString(text, -1) {
			words := strings.Fields(line)
			found, rest, err := root.Find(words[1:])
			if err != nil || found == root {
				t.Errorf("%s: there is no command %q", place, line)
				continue
			}
			if found.HasSubCommands() && (len(rest) == 0 || !strings.HasPrefix(rest[0], "-")) && found.Name() != "explain" {
				t.Errorf("%s: %q is no whole command", place, line)
			}
			for _, flag := range flags.FindAllString(line, -1) {
				if found.Flags().Lookup(flag[2:]) == nil && found.InheritedFlags().Lookup(flag[2:]) == nil {
					t.Errorf("%s: %q does not take %s", place, found.CommandPath(), flag)
				}
			}
		}
	}
}
