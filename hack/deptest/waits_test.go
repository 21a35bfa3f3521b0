package deptest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// TestWaitsAreShared holds that tests wait by testsupport/wait: its deadlines
// fit slow machines, and its failures name the awaited event.
func TestWaitsAreShared(t *testing.T) {
	walk(t, func(path string) {
		if !strings.HasSuffix(path, ".go") || strings.Contains(path, "/testsupport/wait/") {
			return
		}
		fset := token.NewFileSet()
		f := parse(t, fset, path)
		// Test packages have files that are no tests by name, but import
		// testing.
		if !strings.HasSuffix(path, "_test.go") && !imports(f, "testing") {
			return
		}
		for _, pos := range privateWaits(f) {
			t.Errorf("%s: a loop that sleeps until a condition holds: use testsupport/wait", fset.Position(pos))
		}
	})
}

func TestPlantedWaitsAreFound(t *testing.T) {
	const file = "testdata/waits/planted.go"
	fset := token.NewFileSet()
	found := map[int]bool{}
	for _, pos := range privateWaits(parse(t, fset, file)) {
		found[fset.Position(pos).Line] = true
	}
	wantMarked(t, file, found)
}

// wantMarked compares the lines of a planted file that a check has found with
// the lines that are marked by "// want".
func wantMarked(t *testing.T, file string, found map[int]bool) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		n++
		if want := strings.HasSuffix(strings.TrimSpace(line), "// want"); want != found[n] {
			t.Errorf("%s:%d: found %v, want %v", file, n, found[n], want)
		}
	}
}

func parse(t *testing.T, fset *token.FileSet, path string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func imports(f *ast.File, path string) bool {
	for _, i := range f.Imports {
		if i.Path.Value == `"`+path+`"` {
			return true
		}
	}
	return false
}

// privateWaits finds loops that sleep, and that end because something polled
// holds: by the condition of a for, or by leaving the loop from an if or switch
// that does not fail the test.
func privateWaits(f *ast.File) (found []token.Pos) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch loop := n.(type) {
		case *ast.ForStmt:
			if (sleeps(loop.Post) || sleeps(loop.Body)) && (polls(loop.Cond) || leaves(loop.Body)) {
				found = append(found, loop.Pos())
			}
		case *ast.RangeStmt:
			if sleeps(loop.Body) && leaves(loop.Body) {
				found = append(found, loop.Pos())
			}
		}
		return true
	})
	return found
}

// own calls visit for the statements of a loop, not for those of functions and
// loops within it, until visit returns false.
func own(n ast.Node, visit func(ast.Node) bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.FuncLit, *ast.ForStmt, *ast.RangeStmt:
			return false
		}
		return n != nil && visit(n)
	})
}

// sleeps reports whether a statement of a loop sleeps, alone or beside other
// channels, and continues the loop.
func sleeps(n ast.Stmt) (yes bool) {
	if n == nil {
		return false
	}
	own(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			yes = yes || name(n.Fun) == "time.Sleep"
		case *ast.ExprStmt:
			yes = yes || timer(n.X)
		case *ast.CommClause:
			if x, ok := n.Comm.(*ast.ExprStmt); ok && timer(x.X) && !ends(n.Body) {
				yes = true
			}
			for _, s := range n.Body {
				yes = yes || sleeps(s)
			}
			return false
		}
		return true
	})
	return yes
}

// timer reports whether x receives from time.After, time.Tick or a ticker.
func timer(x ast.Expr) bool {
	receive, ok := x.(*ast.UnaryExpr)
	if !ok || receive.Op != token.ARROW {
		return false
	}
	switch x := receive.X.(type) {
	case *ast.CallExpr:
		return name(x.Fun) == "time.After" || name(x.Fun) == "time.Tick"
	case *ast.SelectorExpr:
		return x.Sel.Name == "C"
	case *ast.Ident:
		return strings.Contains(x.Name, "tick")
	}
	return false
}

// polls reports whether the condition of a loop tests something other than
// whether a context has ended.
func polls(cond ast.Expr) (yes bool) {
	if cond == nil {
		return false
	}
	ast.Inspect(cond, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && !strings.HasSuffix(name(call.Fun), ".Err") {
			yes = true
		}
		return true
	})
	return yes
}

// leaves reports whether a loop is left from an if or switch, other than after
// a failure of the test.
func leaves(body *ast.BlockStmt) (yes bool) {
	own(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			yes = yes || ends(n.Body.List) && !fails(n.Body.List)
		case *ast.SwitchStmt:
			for _, s := range n.Body.List {
				c := s.(*ast.CaseClause)
				yes = yes || ends(c.Body) && !fails(c.Body)
			}
		}
		return true
	})
	return yes
}

// ends reports whether statements end in leaving the loop, or the test.
func ends(list []ast.Stmt) bool {
	if len(list) == 0 {
		return false
	}
	switch s := list[len(list)-1].(type) {
	case *ast.ReturnStmt:
		return true
	case *ast.BranchStmt:
		return s.Tok == token.BREAK || s.Tok == token.GOTO
	}
	return fails(list)
}

// fails reports whether statements fail the test.
func fails(list []ast.Stmt) (yes bool) {
	for _, s := range list {
		own(s, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if f, ok := call.Fun.(*ast.SelectorExpr); ok {
				switch f.Sel.Name {
				case "Fatal", "Fatalf", "Error", "Errorf", "FailNow":
					yes = true
				}
			}
			return true
		})
	}
	return yes
}

// name is the dotted name of a function that is called.
func name(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return name(x.X) + "." + x.Sel.Name
	}
	return ""
}
