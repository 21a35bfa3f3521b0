package lang

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const good = `
domain: demo
doc: Things.
enums:
  color:
    doc: A color.
    values: {red: Like fire., green: Like grass.}
components:
  part:
    doc: A part.
    fields:
      name: {type: string, required: true, min: 1, max: 10, pattern: "^[a-z]+$", doc: Its name.}
      wait: {type: duration, default: 250ms, min: 10ms, doc: How long.}
kinds:
  thing:
    plural: things
    prefix: th
    scope: project
    short: [t]
    doc: A thing.
    name_required: true
    spec:
      color: {type: enum, enum: color, default: red, index: true, doc: Its color.}
      parts: {type: list, of: component, component: part, max: 5, doc: Its parts.}
      size: {type: int, default: 1_000, min: -5, max: 4000, unit: cm, doc: Its size.}
      next: {type: ref, kind: thing, on_delete: clear, index: true, doc: The next.}
      host: {type: string, index: prefix, unique: global, doc: Host.}
      env: {type: map, of: secret, doc: Secrets.}
    status: {}
    columns:
      - {title: COLOR, path: spec.color, wide: true}
    indexes:
      by_color: [spec.color, -spec.host]
`

func TestParseReadsWholeSchema(t *testing.T) {
	f, err := parseBytes("x.yml", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newSet(f); err != nil {
		t.Fatal(err)
	}
	k := f.Kinds[0]
	var got []string
	for _, fd := range append(f.Components[0].Fields, k.Spec...) {
		got = append(got, fmt.Sprintf("%s %s default=%v min=%v max=%v req=%v idx=%q uniq=%q del=%q line=%d",
			fd.Name, fd.Describe(), fd.Default, fd.Min, fd.Max, fd.Required, fd.Index, fd.Unique, fd.OnDelete, fd.Pos.Line))
	}
	want := []string{
		`name string default=<nil> min=1 max=10 req=true idx="" uniq="" del="" line=12`,
		`wait duration default=250ms min=10ms max=<nil> req=false idx="" uniq="" del="" line=13`,
		`color enum color default=red min=<nil> max=<nil> req=false idx="equal" uniq="" del="" line=23`,
		`parts list of component part default=<nil> min=<nil> max=5 req=false idx="" uniq="" del="" line=24`,
		`size int default=1000 min=-5 max=4000 req=false idx="" uniq="" del="" line=25`,
		`next ref thing default=<nil> min=<nil> max=<nil> req=false idx="equal" uniq="" del="clear" line=26`,
		`host string default=<nil> min=<nil> max=<nil> req=false idx="prefix" uniq="global" del="" line=27`,
		`env map of secret default=<nil> min=<nil> max=<nil> req=false idx="" uniq="" del="" line=28`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if x := k.Indexes[0]; x.Name != "by_color" || len(x.Parts) != 2 || x.Parts[0].Desc || !x.Parts[1].Desc || x.Parts[1].Field.Name != "host" {
		t.Errorf("index %+v", x)
	}
	if d := f.Components[0].Fields[1].Default; d != 250*time.Millisecond {
		t.Errorf("default is %T %v", d, d)
	}
	if !k.NameRequired || k.Scope != "project" || k.Prefix != "th" || !k.Columns[0].Wide || f.Enums[0].Values[1].Doc != "Like grass." {
		t.Errorf("kind %+v", k)
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"doc: Things.", "dco: Things.", `x.yml:3: unknown key "dco"; did you mean "doc"?`},
		{"domain: demo", "", "domain is missing"},
		{"default: red", "defualt: red", `x.yml:23: thing.spec.color: unknown key "defualt"; did you mean "default"?`},
		{"type: enum,", "type: enun,", `"enun" is not one of string, int,`},
		{"type: enum, enum: color", "type: enum", "thing.spec.color: enum is missing"},
		{"type: int", "type: int, enum: color", "thing.spec.size: enum is for type enum"},
		{"type: int", "type: int, of: int", "of is for list and map"},
		{"of: secret", "min: 1", "needs of"},
		{"of: secret", "of: list", "put the inner one into a component"},
		{"default: 1_000", "default: tall", `thing.spec.size: default: "tall" is not of type int`},
		{"default: 250ms", "default: 250", `part.wait: default: "250" is not of type duration`},
		{"min: 1,", "min: -1,", "a length cannot be negative"},
		{"default: 1_000", "default: 5000", "default is above max"},
		{"default: 1_000", "default: -6", "default is below min"},
		{"default: 1_000, min: -5, max: 4000", "min: 5, max: 4", "max is below min"},
		{"default: 1_000", "default: 1_000, required: true", "required and default exclude each other"},
		{"default: red", "default: blue", `default "blue" is not a value of enum color`},
		{"enum: color,", "enum: colr,", `enum "colr" does not exist; did you mean "color"?`},
		{"component: part,", "component: prat,", `component "prat" does not exist; did you mean "part"?`},
		{"kind: thing", "kind: thin", `kind "thin" does not exist; did you mean "thing"?`},
		{"on_delete: clear, ", "", "on_delete is missing"},
		{"on_delete: clear", "on_delete: explode", `"explode" is not one of restrict, cascade, clear`},
		{"of: secret", "of: secret, index: true", "type map of secret cannot be indexed"},
		{"of: secret", "of: secret, on_delete: clear", "on_delete is for refs"},
		{"index: prefix", "index: sometimes", "index is true, prefix or range"},
		{"unique: global", "unique: maybe", "unique is true or global"},
		{"min: 10ms", "min: 10ms, index: true", "the store does not look into components"},
		{"on_delete: clear", "required: true, on_delete: clear", "required and on_delete: clear exclude each other"},
		{"-spec.host]", "-spec.hots]", `there is no spec.hots; did you mean "spec.host"?`},
		{"-spec.host]", "spec.parts]", "spec.parts of type list of component part cannot be a part"},
		{", -spec.host]", "]", "two attributes or more are expected"},
		{"pattern: \"^[a-z]+$\"", "pattern: \"[\"", "pattern: error parsing regexp"},
		{"unit: cm", "pattern: x", "pattern is for strings"},
		{"required: true", "required: yess", "true or false is expected"},
		{"scope: project", "scope: world", `"world" is not one of project, cluster`},
		{"prefix: th", "doc: y", `key "doc" is repeated`},
		{"prefix: th", "", "kind thing: prefix is missing"},
		{"thing:", "Thing:", `name "Thing" is not lower_snake_case`},
		{"values: {red: Like fire., green: Like grass.}", "values: {}", "enum color has no values"},
		{"path: spec.color", "pth: spec.color", `unknown key "pth"; did you mean "path"?`},
		{"short: [t]", "short: t", "a list is expected"},
		{"max: 5, ", "required: true, max: 5, default: x, ", "default: not possible for type list"},
		{"values: {red: Like fire., green: Like grass.}", "values: 7", "values of color: a mapping is expected"},
		{"domain: demo", "domain: [", "did not find expected"},
	} {
		src := strings.Replace(good, c.old, c.new, 1)
		if src == good {
			t.Fatalf("%q is not in the schema", c.old)
		}
		f, err := parseBytes("x.yml", []byte(src))
		if err == nil {
			_, err = newSet(f)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.new, err, c.want)
		}
	}
}

func TestSetRefuses(t *testing.T) {
	for name, c := range map[string]struct{ src, want string }{
		"contains itself": {`
domain: demo
components:
  a: {doc: x, fields: {b: {type: component, component: b, required: true}}}
  b: {doc: x, fields: {a: {type: component, component: demo.a, required: true}}}
`, "component a contains itself"},
		"two kinds of one prefix": {`
domain: demo
kinds:
  a: {plural: as, prefix: x, scope: cluster, doc: x}
  b: {plural: bs, prefix: x, scope: cluster, doc: x}
`, `prefix "x" is that of a`},
		"two kinds of one alias": {`
domain: demo
kinds:
  a: {plural: as, prefix: x, scope: cluster, doc: x, short: [z]}
  b: {plural: bs, prefix: y, scope: cluster, doc: x, short: [z]}
`, `the name "z" is that of a`},
	} {
		f, err := parseBytes("x.yml", []byte(c.src))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := newSet(f); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	f, err := parseBytes("x.yml", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newSet(f, f); err == nil || !strings.Contains(err.Error(), "enum demo.color is already at x.yml:5") {
		t.Errorf("two files of one content: %v", err)
	}
}

func TestOptionalRecursionIsFine(t *testing.T) {
	f, err := parseBytes("x.yml", []byte("domain: demo\ncomponents:\n  tree: {doc: x, fields: {left: {type: component, component: tree}, all: {type: list, of: component, component: tree}}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newSet(f); err != nil {
		t.Error(err)
	}
}

func TestLoadSet(t *testing.T) {
	root := t.TempDir()
	if _, err := LoadSet(root); err == nil {
		t.Error("an empty tree has a schema")
	}
	dir := filepath.Join(root, "api", "other")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "schema.yml"), []byte(good), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadSet(root); err == nil || !strings.Contains(err.Error(), `domain "demo" is in the folder "other"`) {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := parseBytes("x.yml", b)
		if err == nil {
			newSet(file)
		}
	})
}
