package main

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/schema/gogen"
)

var update = flag.Bool("update", false, "rewrite the golden files under testdata")

// TestGolden: testdata/demo/api/*/schema.yml generates exactly the files that
// are checked in beside it.
func TestGolden(t *testing.T) {
	root := filepath.Join("testdata", "demo")
	if *update {
		if err := gogen.Run(root, false, generate); err != nil {
			t.Fatal(err)
		}
	}
	if err := gogen.Run(root, true, generate); err != nil {
		t.Errorf("%v; look at the difference after go test -update", err)
	}
}

// TestGeneratedCode compiles the golden files as packages of this module (an
// overlay puts them there) and runs testdata/demo/behaviour_test.go.txt
// against them.
func TestGeneratedCode(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	demo, err := filepath.Abs(filepath.Join("testdata", "demo"))
	if err != nil {
		t.Fatal(err)
	}
	replace := map[string]string{}
	for _, f := range []string{"api/alpha/schema.gen.go", "api/beta/schema.gen.go", "api/id/id.gen.go"} {
		replace[filepath.Join(root, f)] = filepath.Join(demo, f)
	}
	replace[filepath.Join(root, "api/beta/behaviour_test.go")] = filepath.Join(demo, "behaviour_test.go.txt")
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	overlay, bin := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "beta.test")
	if err := os.WriteFile(overlay, b, 0o644); err != nil {
		t.Fatal(err)
	}
	// Two steps, because the folder of the packages exists only in the overlay.
	build := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", bin, "./api/beta")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := exec.Command(bin).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// tree writes files under a new root.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const small = `domain: demo
doc: A demo.
kinds:
  thing:
    plural: things
    prefix: th
    scope: cluster
    doc: A thing.
    spec:
      size: {type: int, doc: Size.}
      part: {type: component, component: part, doc: Part.}
    status: {}
    columns:
      - {title: SIZE, path: spec.size, format: bytes}
components:
  part: {doc: A part., fields: {x: {type: int, doc: X.}}}
enums:
  color: {doc: Color., values: {red: Red.}}
`

func TestErrors(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"enum and descriptor", "  color: {", "  thing_kind: {", "enum thing_kind would be ThingKind in Go, as is kind thing: rename one of them"},
		{"component and spec", "  part: {doc", "  thing_spec: {doc: y, fields: {}}\n  part: {doc", "component thing_spec would be ThingSpec in Go"},
		{"constant and kind", "kinds:", "constants:\n  kind_thing: {type: int, value: 1, doc: X.}\nkinds:", "kind thing would be KindThing in Go, as is constant kind_thing"},
		{"value and value", "values: {red: Red.}", "values: {a_b: X., ab: X.}", ""},
		{"no doc", "doc: A demo.\n", "", "doc is missing: say what the domain is"},
		{"column path", "path: spec.size", "path: spec.sise", `"sise" of path "spec.sise" does not exist; did you mean "size"?`},
		{"column of nothing", "path: spec.size", "path: spec", `path "spec" names no field`},
		{"column elsewhere", "path: spec.size", "path: sepc.size", "begins with none of spec, status, meta"},
		{"column of a component", "path: spec.size, format: bytes", "path: spec.part", "spec.part is a component part, which a column cannot show"},
		{"column below a scalar", "path: spec.size", "path: spec.size.x", "has no fields"},
		{"column format", "format: bytes", "format: age", "format age is not for type int"},
	} {
		src := strings.Replace(small, c.old, c.new, 1)
		_, err := generate(tree(t, map[string]string{"api/demo/schema.yml": src}))
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "schema.yml:") {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func TestTwoExportsOfOneName(t *testing.T) {
	files := map[string]string{}
	for _, d := range []string{"a", "b"} {
		files["api/"+d+"/schema.yml"] = "domain: " + d + "\ndoc: X.\nconstants:\n  limit: {type: int, value: 1, doc: X., export: [pkg/demo]}\n"
	}
	if _, err := generate(tree(t, files)); err == nil || !strings.Contains(err.Error(), "constant limit is exported to pkg/demo, as is the one at") {
		t.Error(err)
	}
}

func TestCheckAndLock(t *testing.T) {
	root := tree(t, map[string]string{"api/demo/schema.yml": small})
	if err := gogen.Run(root, true, generate); err == nil || !strings.Contains(err.Error(), "out of date: api/demo/schema.gen.go, api/demo/schema.lock.yml, api/id/id.gen.go") {
		t.Fatalf("check of what was never generated: %v", err)
	}
	if _, err := os.Stat(filepath.Join(root, "api/demo/schema.gen.go")); err == nil {
		t.Fatal("-check wrote a file")
	}
	if err := gogen.Run(root, false, generate); err != nil {
		t.Fatal(err)
	}
	if err := gogen.Run(root, true, generate); err != nil {
		t.Fatalf("check after generation: %v", err)
	}
	gen := filepath.Join(root, "api/demo/schema.gen.go")
	before, err := os.ReadFile(gen)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "api/demo/schema.yml"), []byte(strings.Replace(small, "size: {type: int", "size: {type: string", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := gogen.Run(root, false, generate); err == nil || !strings.Contains(err.Error(), "incompatible change: the field thing.spec.size was of type") {
		t.Errorf("a changed type: %v", err)
	}
	after, err := os.ReadFile(gen)
	if err != nil || string(after) != string(before) {
		t.Errorf("an incompatible change wrote code (%v)", err)
	}
}

// TestRepository: the checked-in files are those that the schemas generate.
func TestRepository(t *testing.T) {
	if err := gogen.Run(filepath.Join("..", "..", ".."), true, generate); err != nil {
		t.Error(err)
	}
}
