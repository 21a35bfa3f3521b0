// Package deptest keeps the architecture true: imports point one way, only
// tests link what is for tests, files stay readable, and links in the docs lead
// somewhere. Each check is a function that is also fed planted violations.
package deptest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
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
	"components":  {"pkg"},
	"entity":      {"pkg", "api", "go.etcd.io/etcd"},
	"domain":      {"pkg", "api", "entity"},
	"controllers": {"pkg", "api", "entity", "domain", "components"},
	"servers":     {"pkg", "api", "entity", "domain", "components", "controllers", "lsvd", "web"},
	"sdk":         {},
	"web":         {},
	"cli":         {"pkg", "api", "entity", "domain", "components", "controllers", "servers", "lsvd", "sdk"},
	"cmd":         {"pkg", "api", "entity", "domain", "components", "controllers", "servers", "lsvd", "cli"},
	"testsupport": {"pkg", "api", "entity", "components", "lsvd"}, // only tests import it
	"e2e":         {},
	"hack":        {"pkg"},
	"examples":    {},
}

// forbidden lists the packages that a package tree must not link, however
// indirectly.
var forbidden = map[string][]string{
	"cmd/r":               {"k8s.io"},
	"sdk":                 {"k8s.io"},
	"api/...":             {"github.com/jackc/pgx", "github.com/containerd/containerd"},
	"entity":              {"github.com/jackc/pgx", "modernc.org/sqlite"},
	"entity/eval":         {"github.com/jackc/pgx", "modernc.org/sqlite", "go.etcd.io/etcd"},
	"entity/feed":         {"github.com/jackc/pgx", "modernc.org/sqlite", "go.etcd.io/etcd"},
	"entity/listing":      {"github.com/jackc/pgx", "modernc.org/sqlite", "go.etcd.io/etcd"},
	"entity/records":      {"github.com/jackc/pgx", "modernc.org/sqlite", "go.etcd.io/etcd"},
	"entity/transfer":     {"github.com/jackc/pgx", "modernc.org/sqlite", "go.etcd.io/etcd"},
	"entity/pgstore":      {"modernc.org/sqlite", "go.etcd.io/etcd"},
	"entity/sqlitestore":  {"github.com/jackc/pgx", "go.etcd.io/etcd"},
	"entity/etcdstore":    {"github.com/jackc/pgx", "modernc.org/sqlite"},
	"cmd/runtime-agent":   {"github.com/containerd/containerd", "github.com/jackc/pgx", "net/http"},
	"lsvd/...":            {"github.com/jackc/pgx", "github.com/containerd/containerd"},
	"domain/...":          {"github.com/jackc/pgx", "modernc.org/sqlite", "github.com/containerd/containerd"},
	"servers/ingress":     {"github.com/jackc/pgx", "github.com/containerd/containerd"},
	"servers/server":      {module + "servers/mock", module + "components/mock"}, // no configuration leads to the mock server
	"servers/mock":        {"github.com/jackc/pgx", "github.com/containerd/containerd", module + "servers/server"},
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
	for _, v := range wrongImports(list(t, "./...")) {
		t.Error(v)
	}
}

// wrongImports returns the imports of our packages that do not follow allowed,
// and imports of test packages by others.
func wrongImports(pkgs []pkg) (violations []string) {
	for _, p := range pkgs {
		from, ok := strings.CutPrefix(p.ImportPath, module)
		if !ok {
			continue
		}
		top := folder(from)
		may, known := allowed[top]
		if !known {
			violations = append(violations, fmt.Sprintf("%s: folder %q is not in the layout; add it to allowed and docs/architecture.md", from, top))
			continue
		}
		for _, imp := range p.Imports {
			to, ours := strings.CutPrefix(imp, module)
			if !ours {
				continue
			}
			if forTests(to) && !forTests(from) {
				violations = append(violations, fmt.Sprintf("%s imports %s: only tests may", from, to))
			} else if other := folder(to); other != top && other != place(from) && !slices.Contains(may, other) && !forTests(to) {
				violations = append(violations, fmt.Sprintf("%s imports %s: %s may import only %v", from, to, top, may))
			}
		}
	}
	return violations
}

// folder is the top folder whose rules a package follows. A package for tests
// follows those of testsupport, wherever it is; it may also import its own place.
func folder(pkg string) string {
	if forTests(pkg) {
		return "testsupport"
	}
	return place(pkg)
}

// place is the top folder that a package is in.
func place(pkg string) string {
	top, _, _ := strings.Cut(pkg, "/")
	return top
}

// forTests reports whether a package is for tests, by its place or its name:
// testsupport/..., entity/storetest, the simulator lsvd/vfs/vfssim.
func forTests(pkg string) bool {
	name := path.Base(pkg)
	return strings.HasPrefix(pkg, "testsupport/") || (strings.HasSuffix(name, "test") || strings.HasSuffix(name, "sim")) && !strings.HasPrefix(pkg, "hack/")
}

func TestPlantedImportsAreFound(t *testing.T) {
	for from, imports := range map[string]map[string]bool{ // import path: whether it is wrong
		"pkg/rpc":                 {"pkg/schema": false, "entity": true, "testsupport/wait": true},
		"domain/apps":             {"entity/informer": false, "controllers/kit": true, "servers/rpc": true},
		"components/runsc":        {"lsvd/frontend/loop": true, "api/sandbox": true, "pkg/errs": false, "entity/storetest": true},
		"entity/storetest":        {"testsupport/wait": false, "entity": false, "servers/rpc": true},
		"controllers/kit/kittest": {"controllers/kit": false, "entity/informer": false, "servers/rpc": true},
		"testsupport/pgtest":      {"entity/pgstore": false, "cli/app": true},
		"lsvd":                    {"pkg/errs": false, "entity": true, "lsvd/vfs/vfssim": true},
		"nowhere/in/particular":   {"pkg/errs": true},
	} {
		for to, wrong := range imports {
			found := wrongImports([]pkg{{ImportPath: module + from, Imports: []string{"fmt", module + to}}})
			if len(found) > 0 != wrong {
				t.Errorf("%s imports %s: found %q, want wrong %v", from, to, found, wrong)
			}
		}
	}
}

func TestForbiddenDependencies(t *testing.T) {
	for tree, bad := range forbidden {
		if _, err := os.Stat(filepath.Join(root(t), strings.TrimSuffix(tree, "/..."))); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		for _, p := range linked(list(t, "-deps", "./"+tree), bad) {
			t.Errorf("%s links %s", tree, p)
		}
	}
}

// linked returns the packages that are among, or below, bad ones.
func linked(deps []pkg, bad []string) (found []string) {
	for _, p := range deps {
		if slices.ContainsFunc(bad, func(b string) bool { return p.ImportPath == b || strings.HasPrefix(p.ImportPath, b+"/") }) {
			found = append(found, p.ImportPath)
		}
	}
	return found
}

func TestPlantedDependenciesAreFound(t *testing.T) {
	deps := []pkg{{ImportPath: "net"}, {ImportPath: "net/http"}, {ImportPath: "github.com/jackc/pgx/v5/pgconn"}, {ImportPath: "github.com/jackc/pgxlisten"}}
	want := []string{"net/http", "github.com/jackc/pgx/v5/pgconn"}
	if got := linked(deps, forbidden["cmd/runtime-agent"]); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
	// The list of real dependencies is not empty, or the test would find
	// nothing in it.
	if got := linked(list(t, "-deps", "./entity/pgstore"), []string{"github.com/jackc/pgx"}); len(got) == 0 {
		t.Error("pgx is not found among the dependencies of entity/pgstore")
	}
}
