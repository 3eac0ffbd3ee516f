package ortapi

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// A Go pointer becomes a number in the argument list of native.Call and nowhere else: there the compiler keeps in place
// what it points to, elsewhere that may move with the stack.
func TestPointersInCallsOnly(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	conversions := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		arguments := argumentsOfCalls(file)
		ast.Inspect(file, func(n ast.Node) bool {
			if isPointerToNumber(n) {
				conversions++
				if !arguments[n] {
					t.Errorf("%v: a pointer becomes a number outside a call", set.Position(n.Pos()))
				}
			}
			return true
		})
	}
	if conversions < 20 {
		t.Errorf("found %d conversions, this test does not see them", conversions)
	}
}

// argumentsOfCalls are the arguments of native.Call in a file.
func argumentsOfCalls(file *ast.File) map[ast.Node]bool {
	arguments := map[ast.Node]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && selects(call.Fun, "native", "Call") {
			for _, argument := range call.Args {
				arguments[argument] = true
			}
		}
		return true
	})
	return arguments
}

// isPointerToNumber tells whether a node is uintptr(unsafe.Pointer(...)).
func isPointerToNumber(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return false
	}
	if name, ok := call.Fun.(*ast.Ident); !ok || name.Name != "uintptr" {
		return false
	}
	inner, ok := call.Args[0].(*ast.CallExpr)
	return ok && selects(inner.Fun, "unsafe", "Pointer")
}

// selects tells whether an expression is a name of a package.
func selects(e ast.Expr, pkg, name string) bool {
	selector, ok := e.(*ast.SelectorExpr)
	if !ok || selector.Sel.Name != name {
		return false
	}
	id, ok := selector.X.(*ast.Ident)
	return ok && id.Name == pkg
}
