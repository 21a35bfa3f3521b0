package deptest

import (
	"go/ast"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPackagesAreDocumented holds that each package says what it is for.
func TestPackagesAreDocumented(t *testing.T) {
	fset := token.NewFileSet()
	files := map[string][]*ast.File{} // by directory
	walk(t, func(path string) {
		if strings.HasSuffix(path, ".go") {
			dir := filepath.Dir(path)
			files[dir] = append(files[dir], parse(t, fset, path))
		}
	})
	for _, dir := range slices.Sorted(maps.Keys(files)) {
		if why := undocumented(fset, files[dir]); why != "" {
			t.Errorf("%s: %s: open it with a sentence saying what it is for", dir, why)
		}
	}
}

// undocumented returns the problem with the package comment of these files, or
// "". A command's comment may begin with any word.
func undocumented(fset *token.FileSet, files []*ast.File) string {
	onlyTests := !slices.ContainsFunc(files, func(f *ast.File) bool { return !isTest(fset, f) })
	why := "has no comment"
	for _, f := range files {
		if f.Doc == nil || isTest(fset, f) && !onlyTests {
			continue
		}
		text := f.Doc.Text()
		pkg := strings.TrimSuffix(f.Name.Name, "_test")
		if pkg == "main" || strings.HasPrefix(text, "Package "+pkg+" ") {
			return ""
		}
		why = "its comment does not begin with \"Package " + pkg + " \""
	}
	return why
}

func isTest(fset *token.FileSet, f *ast.File) bool {
	return strings.HasSuffix(fset.Position(f.Pos()).Filename, "_test.go")
}

func TestPlantedPackagesWithoutDocsAreFound(t *testing.T) {
	for dir, want := range map[string]bool{"silent": true, "other": true, "said": false, "tests": false} {
		fset := token.NewFileSet()
		paths, err := filepath.Glob(filepath.Join("testdata", "docs", dir, "*.go"))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %v", dir, err)
		}
		var files []*ast.File
		for _, p := range paths {
			files = append(files, parse(t, fset, p))
		}
		if why := undocumented(fset, files); (why != "") != want {
			t.Errorf("%s: found %q, want a violation %v", dir, why, want)
		}
	}
}
