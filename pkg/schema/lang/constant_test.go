package lang

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const withConstants = `
domain: demo
constants:
  max_size: {type: int, value: 1_000, unit: cm, export: [pkg/demo], doc: How large a thing is at most.}
  wait: {type: duration, value: 5s, doc: How long it takes.}
  letters: {type: string, value: "^[a-z]+$", doc: What a text is made of.}
  shade: {type: string, value: dark, doc: The usual shade.}
enums:
  shade_of: {doc: x, values: {dark: x, light: x}}
components:
  part:
    doc: A part.
    fields:
      size: {type: int, default: $max_size, max: $demo.max_size, doc: x}
      text: {type: string, max: $max_size, pattern: $letters, doc: x}
      wait: {type: duration, min: $wait, doc: x}
      shade: {type: enum, enum: shade_of, doc: x}
`

func TestFieldsReferToConstants(t *testing.T) {
	f, err := parseBytes("x.yml", []byte(withConstants))
	if err != nil {
		t.Fatal(err)
	}
	if c := f.Constants[0]; c.Domain != "demo" || c.Name != "max_size" || c.Value != int64(1000) || c.Unit != "cm" || c.Export[0] != "pkg/demo" || c.Pos.Line != 4 {
		t.Errorf("%+v", c)
	}
	size, text, wait := f.Components[0].Fields[0], f.Components[0].Fields[1], f.Components[0].Fields[2]
	if size.Default != int64(1000) || size.Max != int64(1000) || text.Max != int64(1000) || text.Pattern != "^[a-z]+$" || wait.Min != 5*time.Second {
		t.Errorf("%+v\n%+v\n%+v", size, text, wait)
	}
}

func TestConstantsThatAreWrong(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"default: $max_size", "default: $max_sise", `x.yml:14: part.size: default: constant "max_sise" does not exist; did you mean "max_size"?`},
		{"default: $max_size", "default: $wait", "constant wait is of type duration, not int"},
		{"default: $max_size", "default: $other.max_size", `constant "other.max_size" does not exist`},
		{"value: 1_000", "value: many", `"many" is not of type int`},
		{"value: 1_000", "value: $wait", "must be written out"},
		{"value: 5s, ", "", "constant wait: type, value and doc are required"},
		{"export: [pkg/demo]", "export: [cli/demo]", `"cli/demo" is not a package below pkg/`},
		{"type: string, value: dark", "type: bool, value: true", `"bool" is not one of string, int, float, duration`},
	} {
		src := strings.Replace(withConstants, c.old, c.new, 1)
		if src == withConstants {
			t.Fatalf("%q is not in the schema", c.old)
		}
		if _, err := parseBytes("x.yml", []byte(src)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.new, err, c.want)
		}
	}
}

// The order of the files does not matter: a is read before b.
func TestConstantsOfAnotherDomain(t *testing.T) {
	root := t.TempDir()
	for domain, src := range map[string]string{
		"a": "domain: a\ncomponents:\n  x: {doc: x, fields: {n: {type: int, max: $b.limit, doc: x}}}\n",
		"b": "domain: b\nconstants:\n  limit: {type: int, value: 7, doc: x}\n",
	} {
		if err := os.MkdirAll(filepath.Join(root, "api", domain), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "api", domain, "schema.yml"), []byte(src), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	set, err := LoadSet(root)
	if err != nil {
		t.Fatal(err)
	}
	if f := set.Component("a", "x").Fields[0]; f.Max != int64(7) {
		t.Errorf("%+v", f)
	}
}
