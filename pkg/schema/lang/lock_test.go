package lang

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// lockOf applies the schemas in turn to a lock file, as successive versions
// of one schema would be, and returns the file and the error of the last.
func lockOf(t *testing.T, versions ...string) (string, *File, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "schema.lock.yml")
	for i, v := range versions {
		f, err := parseBytes("x.yml", []byte(v))
		if err != nil {
			t.Fatal(err)
		}
		l, err := LoadLock(path, f.Domain)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.File(f); err != nil {
			if i < len(versions)-1 {
				t.Fatal(err)
			}
			return "", f, err
		}
		b, err := l.Bytes("test")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		if i == len(versions)-1 {
			return string(b), f, nil
		}
	}
	return "", nil, nil
}

func TestLockNumbers(t *testing.T) {
	without := strings.Replace(good, "      size: {type: int, default: 1_000, min: -5, max: 4000, unit: cm, doc: Its size.}\n", "      added: {type: int, doc: New.}\n", 1)
	first, f, err := lockOf(t, good)
	if err != nil {
		t.Fatal(err)
	}
	for i, fd := range f.Kinds[0].Spec {
		if fd.Number != i+1 {
			t.Errorf("%s has number %d", fd.Name, fd.Number)
		}
	}
	same, _, err := lockOf(t, good, good)
	if err != nil || same != first {
		t.Errorf("not stable: %v\n%s\n%s", err, first, same)
	}
	gone, f, err := lockOf(t, good, without)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(gone, "{name: size, number: 3, type: int, removed: true}") {
		t.Errorf("the number of a removed field is not kept:\n%s", gone)
	}
	if got := f.Kinds[0].Spec[2]; got.Name != "added" || got.Number != 7 {
		t.Errorf("new field in the middle: %s has number %d, want 7", got.Name, got.Number)
	}
	_, f, err = lockOf(t, good, without, good)
	if err != nil || f.Kinds[0].Spec[2].Number != 3 {
		t.Errorf("a field that came back: %v, number %d", err, f.Kinds[0].Spec[2].Number)
	}
}

func TestLockIncompatible(t *testing.T) {
	const what = "or, if no installation ever stored or spoke it, delete the entry "
	for _, c := range []struct{ name, old, new, want string }{
		{"type", "size: {type: int, default: 1_000, min: -5, max: 4000", "size: {type: float",
			`x.yml:25: incompatible change: the field thing.spec.size was of type "int" and is now "float": add a field of another name, or take the type back; ` + what + "thing.spec.size from"},
		{"element type", "env: {type: map, of: secret", "env: {type: map, of: string", `"map of secret" and is now "map of string"`},
		{"target kind", "kind: thing, on_delete", "kind: other, on_delete", `"ref thing" and is now "ref other"`},
		{"enum value", "green: Like grass.", "blue: Like the sea.", `the value "green" of enum color is gone: put it back`},
		{"prefix", "prefix: th", "prefix: tg", `had prefix "th" and scope "project" and has now "tg"`},
		{"scope", "scope: project", "scope: cluster", `has now "th" and "cluster"`},
		{"kind gone", "  thing:\n", "  thong:\n", "the kind thing is gone, but entities of it may be stored"},
		{"optional to required", "host: {type: string,", "host: {type: string, required: true,", "thing.spec.host was optional and is now required"},
		{"new required", "    status: {}", "    status: {added: {type: int, required: true}}", "the new field thing.status.added is required"},
	} {
		_, _, err := lockOf(t, good, strings.Replace(good, c.old, c.new, 1))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
	removed := strings.Replace(good, "      size: {type: int, default: 1_000, min: -5, max: 4000, unit: cm, doc: Its size.}\n", "", 1)
	other := strings.Replace(removed, "      next:", "      size: {type: string}\n      next:", 1)
	if _, _, err := lockOf(t, good, removed, other); err == nil || !strings.Contains(err.Error(), `was, before its removal, of type "int"`) {
		t.Errorf("a removed name with another type: %v", err)
	}
}

func TestLockAllows(t *testing.T) {
	for _, c := range []struct{ name, old, new string }{
		{"default", "default: red", "default: green"},
		{"bounds", "max: 4000", "max: 5000"},
		{"new value", "green: Like grass.", "green: Like grass., blue: Like the sea."},
		{"new optional field", "    status: {}", "    status: {added: {type: int}}"},
		{"qualified name", "enum: color,", "enum: demo.color,"},
		{"component gone", "      parts: {type: list, of: component, component: part, max: 5, doc: Its parts.}\n", ""},
	} {
		if _, _, err := lockOf(t, good, strings.Replace(good, c.old, c.new, 1)); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestLoadLockRefuses(t *testing.T) {
	for name, src := range map[string]string{
		"unknown key":      "struct: {}\n",
		"number twice":     "structs: {a: [{name: x, number: 1, type: int}, {name: y, number: 1, type: int}]}\n",
		"number not there": "structs: {a: [{name: x, type: int}]}\n",
		"not yaml":         "structs: [",
	} {
		path := filepath.Join(t.TempDir(), "schema.lock.yml")
		if err := os.WriteFile(path, []byte(src), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadLock(path, "demo"); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
