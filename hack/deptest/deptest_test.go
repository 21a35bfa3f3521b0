// Package deptest keeps the architecture true: imports point one way, files
// stay readable, and links in the docs lead somewhere.
package deptest

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const module = "miren.dev/runtime/"

// allowed lists, per top folder, the other top folders that its packages may
// import. See "Layout and imports" in docs/architecture.md.
var allowed = map[string][]string{
	"pkg":         {},
	"lsvd":        {"pkg"},
	"api":         {"pkg"},
	"components":  {"pkg", "lsvd"},
	"entity":      {"pkg", "api"},
	"domain":      {"pkg", "api", "entity"},
	"controllers": {"pkg", "api", "entity", "domain", "components"},
	"servers":     {"pkg", "api", "entity", "domain", "components", "controllers", "lsvd"},
	"cli":         {"pkg", "api", "entity", "domain", "components", "controllers", "servers", "lsvd"},
	"cmd":         {"pkg", "api", "entity", "domain", "components", "controllers", "servers", "lsvd", "cli"},
	"testsupport": {"pkg", "api", "entity", "components", "lsvd"}, // only tests import it
	"e2e":         {},
	"hack":        {"pkg"},
	"examples":    {},
}

// forbidden says what a package tree must not link, however indirectly.
var forbidden = map[string][]string{
	"api/...":             {"github.com/jackc/pgx", "github.com/containerd/containerd"},
	"entity":              {"github.com/jackc/pgx"},
	"cmd/runtime-agent":   {"github.com/containerd/containerd", "github.com/jackc/pgx", "net/http"},
	"lsvd/...":            {"github.com/jackc/pgx", "github.com/containerd/containerd"},
	"domain/...":          {"github.com/jackc/pgx", "github.com/containerd/containerd"},
	"servers/ingress":     {"github.com/jackc/pgx", "github.com/containerd/containerd"},
	"controllers/kit/...": {"github.com/jackc/pgx", "github.com/containerd/containerd"},
}

type pkg struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Imports,TestImports,XTestImports"}, args...)...)
	cmd.Dir = root(t)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %v: %v", args, err)
	}
	var pkgs []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestImportsPointOneWay(t *testing.T) {
	for _, p := range list(t, "./...") {
		from, ok := strings.CutPrefix(p.ImportPath, module)
		if !ok {
			continue
		}
		top, _, _ := strings.Cut(from, "/")
		may, known := allowed[top]
		if !known {
			t.Errorf("%s: folder %q is not in the layout; add it to allowed and docs/architecture.md", from, top)
			continue
		}
		for _, imp := range p.Imports {
			to, ours := strings.CutPrefix(imp, module)
			if !ours || strings.HasPrefix(to, top+"/") || to == top {
				continue
			}
			good := false
			for _, a := range may {
				good = good || to == a || strings.HasPrefix(to, a+"/")
			}
			if !good {
				t.Errorf("%s imports %s: %s may import only %v", from, to, top, may)
			}
		}
	}
}

func TestForbiddenDependencies(t *testing.T) {
	for tree, bad := range forbidden {
		if _, err := os.Stat(filepath.Join(root(t), strings.TrimSuffix(tree, "/..."))); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		for _, p := range list(t, "-deps", "./"+tree) {
			for _, b := range bad {
				if p.ImportPath == b || strings.HasPrefix(p.ImportPath, b+"/") {
					t.Errorf("%s links %s", tree, p.ImportPath)
				}
			}
		}
	}
}

// maxLines is where a hand-written file has become two.
const maxLines = 650

func TestFilesStayReadable(t *testing.T) {
	walk(t, func(path string) {
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".gen.go") {
			return
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		n := 0
		for s := bufio.NewScanner(f); s.Scan(); n++ {
		}
		if n > maxLines {
			t.Errorf("%s has %d lines (at most %d): split it by noun", path, n, maxLines)
		}
	})
}

var link = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)

func TestDocsLinksLeadSomewhere(t *testing.T) {
	walk(t, func(path string) {
		if !strings.HasSuffix(path, ".md") {
			return
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(b), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s links to %s, which is not there", path, m[1])
			}
		}
	})
}

func walk(t *testing.T, f func(path string)) {
	t.Helper()
	err := filepath.WalkDir(root(t), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); n == ".git" || n == "bin" || n == "node_modules" || n == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		f(path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
