package ortapi

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// A Go pointer becomes a number in the argument list of native.Call and nowhere else: the compiler keeps what it
// points to in place there, and moves it with the stack elsewhere.
func TestPointersInCallsOnly(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	calls := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		direct := map[ast.Node]bool{}
		ast.Inspect(f, func(n ast.Node) bool {
			if c, ok := n.(*ast.CallExpr); ok && selects(c.Fun, "native", "Call") {
				for _, a := range c.Args {
					direct[a] = true
				}
			}
			return true
		})
		ast.Inspect(f, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok || len(c.Args) != 1 {
				return true
			}
			if id, ok := c.Fun.(*ast.Ident); !ok || id.Name != "uintptr" {
				return true
			}
			if in, ok := c.Args[0].(*ast.CallExpr); ok && selects(in.Fun, "unsafe", "Pointer") {
				if calls++; !direct[c] {
					t.Errorf("%v: a pointer becomes a number outside a call", set.Position(c.Pos()))
				}
			}
			return true
		})
	}
	if calls < 20 {
		t.Errorf("found %d conversions, this test does not see them", calls)
	}
}

func selects(e ast.Expr, pkg, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	id, ok := s.X.(*ast.Ident)
	return ok && id.Name == pkg
}
