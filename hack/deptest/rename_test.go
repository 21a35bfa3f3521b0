package deptest

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// TestFilesAreReplacedDurably holds that files are replaced by pkg/atomicfile,
// which syncs. A call of os.Rename beside a comment about atomicfile has another use.
func TestFilesAreReplacedDurably(t *testing.T) {
	walk(t, func(path string) {
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.Contains(path, "/pkg/atomicfile/") || strings.Contains(path, "/testsupport/") ||
			strings.Contains(path, "/components/shim/") { // a module of its own
			return
		}
		fset := token.NewFileSet()
		f := parse(t, fset, path)
		for _, pos := range renames(fset, f) {
			t.Errorf("%s: os.Rename does not sync: use pkg/atomicfile, or say in a comment why not", fset.Position(pos))
		}
	})
}

func TestPlantedRenamesAreFound(t *testing.T) {
	const file = "testdata/rename/planted.go"
	fset := token.NewFileSet()
	found := map[int]bool{}
	for _, pos := range renames(fset, parse(t, fset, file)) {
		found[fset.Position(pos).Line] = true
	}
	wantMarked(t, file, found)
}

// renames finds uses of os.Rename in functions without a comment about atomicfile.
func renames(fset *token.FileSet, f *ast.File) (found []token.Pos) {
	for _, d := range f.Decls {
		var from, to token.Pos = d.Pos(), d.End()
		explained := false
		for _, c := range f.Comments {
			if fset.Position(c.End()).Line+1 >= fset.Position(from).Line && c.Pos() <= to {
				explained = explained || strings.Contains(c.Text(), "atomicfile")
			}
		}
		if explained {
			continue
		}
		ast.Inspect(d, func(n ast.Node) bool {
			if x, ok := n.(*ast.SelectorExpr); ok && name(x) == "os.Rename" {
				found = append(found, x.Pos())
			}
			return true
		})
	}
	return found
}
