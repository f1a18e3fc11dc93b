package proxy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTheOrderIsDocumented compares the table in docs/overload.md with the code: the steps of listener.Conn.Read, the
// filters of handler, and the RoundTrippers of the forwarder.
func TestTheOrderIsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "overload.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "<!-- order -->")
	table, _, _ = strings.Cut(table, "<!-- end of order -->")
	documented := map[string][]string{}
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, " | "); len(cells) > 2 && strings.HasPrefix(cells[1], "`") {
			where := strings.TrimPrefix(cells[0], "| ")
			documented[where] = append(documented[where], strings.Trim(cells[1], "`"))
		}
	}
	filters := called(t, "chain.go", "handler", func(name string) bool {
		return !slices.Contains([]string{"NewInfoResolver", "NewLongResponses", "Unauthenticated", "writeRefused"}, name)
	})
	forward := called(t, filepath.Join("relay", "forward.go"), "proxy", isRoundTripper)
	// A request passes the filters from the last to the first.
	slices.Reverse(filters)
	for where, got := range map[string][]string{
		"read":    called(t, filepath.Join("listener", "conn.go"), "Read", nil),
		"filter":  filters,
		"forward": forward,
	} {
		if diff := cmp.Diff(got, documented[where]); diff != "" {
			t.Errorf("steps of %s (-code +docs/overload.md):\n%s", where, diff)
		}
	}
}

func isRoundTripper(name string) bool {
	return slices.Contains([]string{"asUser", "holdResponse"}, name)
}

// called returns the wanted names of what a function calls or creates, in source order. If wanted is nil, these are the
// methods of listener.Conn.
func called(t *testing.T, file, function string, wanted func(string) bool) (names []string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range parsed.Decls {
		declared, ok := one.(*ast.FuncDecl)
		if !ok || declared.Name.Name != function {
			continue
		}
		ast.Inspect(declared.Body, func(node ast.Node) bool {
			name := nameOf(node)
			switch {
			case name == "":
			case wanted == nil && slices.Contains([]string{"Load", "Read"}, name):
			case wanted != nil && !wanted(name):
			case slices.Contains(names, name):
			default:
				names = append(names, name)
			}
			return true
		})
	}
	return names
}

// nameOf returns the name of what a node calls or creates.
func nameOf(node ast.Node) string {
	var what ast.Expr
	switch n := node.(type) {
	case *ast.CallExpr:
		what = n.Fun
	case *ast.CompositeLit:
		what = n.Type
	}
	switch w := what.(type) {
	case *ast.Ident:
		return w.Name
	case *ast.SelectorExpr:
		return w.Sel.Name
	}
	return ""
}
