package lang

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Lock is the memory of a schema: which number each field ever had and of
// which type it was, so that stored data and old peers stay readable. It is a
// file checked in beside the schema:
//
//	structs:
//	  probe: [{name: kind, number: 1, type: enum probe_kind}, {name: old, number: 2, type: int, removed: true}]
//	enums:
//	  probe_kind: [none, tcp, http]
//	kinds:
//	  sandbox: {prefix: sb, scope: project}
//
// New fields get the next number. A removed field keeps its number reserved
// and may come back only with the same type. What would make old data
// unreadable is an error that says what to do.
type Lock struct {
	path   string
	domain string
	data   lockData
	seen   map[string]bool
}

type lockData struct {
	Kinds   map[string]lockKind     `yaml:"kinds,omitempty"`
	Enums   map[string][]string     `yaml:"enums,omitempty"`
	Structs map[string][]*lockField `yaml:"structs,omitempty"`
}

type lockKind struct {
	Prefix string `yaml:"prefix"`
	Scope  string `yaml:"scope"`
}

type lockField struct {
	Name     string `yaml:"name"`
	Number   int    `yaml:"number"`
	Type     string `yaml:"type"`
	Required bool   `yaml:"required,omitempty"`
	Removed  bool   `yaml:"removed,omitempty"`
}

// LoadLock reads the lock file of a domain; a missing file is an empty lock.
func LoadLock(path, domain string) (*Lock, error) {
	l := &Lock{path: path, domain: domain, seen: map[string]bool{}}
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read schema lock: %w", err)
	}
	if len(bytes.TrimSpace(b)) > 0 {
		dec := yaml.NewDecoder(bytes.NewReader(b))
		dec.KnownFields(true)
		if err := dec.Decode(&l.data); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if l.data.Kinds == nil {
		l.data.Kinds = map[string]lockKind{}
	}
	if l.data.Enums == nil {
		l.data.Enums = map[string][]string{}
	}
	if l.data.Structs == nil {
		l.data.Structs = map[string][]*lockField{}
	}
	for name, fs := range l.data.Structs {
		nums := map[int]bool{}
		for _, f := range fs {
			if f.Number < 1 || nums[f.Number] {
				return nil, fmt.Errorf("%s: %s.%s: number %d is not positive or used twice; restore the file from version control", path, name, f.Name, f.Number)
			}
			nums[f.Number] = true
		}
	}
	return l, nil
}

func (l *Lock) incompatible(pos Pos, entry, format string, args ...any) error {
	return fmt.Errorf("%s: incompatible change: %s; or, if no installation ever stored or spoke it, delete the entry %s from %s",
		pos, fmt.Sprintf(format, args...), entry, l.path)
}

// Struct assigns the numbers of fields. name is the name of the component or
// message, or kind.spec, kind.status. A change that makes stored data
// unreadable is an error.
func (l *Lock) Struct(name string, fields []*Field) error {
	l.seen["struct "+name] = true
	old, known := l.data.Structs[name]
	next := 1
	byName := map[string]*lockField{}
	for _, f := range old {
		next = max(next, f.Number+1)
		byName[f.Name] = f
	}
	var errs []error
	present := map[string]bool{}
	for _, f := range fields {
		present[f.Name] = true
		typ := l.describe(f)
		entry := name + "." + f.Name
		was := byName[f.Name]
		switch {
		case was == nil:
			if known && f.Required {
				errs = append(errs, l.incompatible(f.Pos, name, "the new field %s is required, but what is stored does not have it: give it a default or make it optional", entry))
				continue
			}
			was = &lockField{Name: f.Name, Number: next, Type: typ, Required: f.Required}
			next++
			old = append(old, was)
		case was.Type != typ:
			what := "was"
			if was.Removed {
				what = "was, before its removal,"
			}
			errs = append(errs, l.incompatible(f.Pos, entry, "the field %s %s of type %q and is now %q: add a field of another name, or take the type back", entry, what, was.Type, typ))
			continue
		case f.Required && (!was.Required || was.Removed):
			errs = append(errs, l.incompatible(f.Pos, entry, "the field %s was optional and is now required: give it a default or leave it optional", entry))
			continue
		}
		was.Required, was.Removed = f.Required, false
		f.Number = was.Number
	}
	for _, f := range old {
		if !present[f.Name] {
			f.Removed, f.Required = true, false
		}
	}
	l.data.Structs[name] = old
	return errors.Join(errs...)
}

// describe is Field.Describe with names of the own domain unqualified.
func (l *Lock) describe(f *Field) string {
	return strings.Replace(f.Describe(), " "+l.domain+".", " ", 1)
}

// enum records the values of an enum. Removing one is an error.
func (l *Lock) enum(e *Enum) error {
	l.seen["enum "+e.Name] = true
	var now []string
	for _, v := range e.Values {
		now = append(now, v.Name)
	}
	var errs []error
	for _, v := range l.data.Enums[e.Name] {
		if !slices.Contains(now, v) {
			errs = append(errs, l.incompatible(e.Pos, "enums."+e.Name+" "+v, "the value %q of enum %s is gone: put it back", v, e.Name))
		}
	}
	l.data.Enums[e.Name] = now
	return errors.Join(errs...)
}

// kind records a kind. Changing its prefix or scope is an error.
func (l *Lock) kind(k *Kind) error {
	l.seen["kind "+k.Name] = true
	now := lockKind{Prefix: k.Prefix, Scope: k.Scope}
	if was, ok := l.data.Kinds[k.Name]; ok && was != now {
		return l.incompatible(k.Pos, "kinds."+k.Name, "the kind %s had prefix %q and scope %q and has now %q and %q: take that back", k.Name, was.Prefix, was.Scope, now.Prefix, now.Scope)
	}
	l.data.Kinds[k.Name] = now
	return nil
}

// File applies Struct, Enum and Kind to all of f and reports removed kinds.
func (l *Lock) File(f *File) error {
	var errs []error
	for _, e := range f.Enums {
		errs = append(errs, l.enum(e))
	}
	for _, c := range f.Components {
		errs = append(errs, l.Struct(c.Name, c.Fields))
	}
	for _, k := range f.Kinds {
		errs = append(errs, l.kind(k), l.Struct(k.Name+".spec", k.Spec), l.Struct(k.Name+".status", k.Status))
	}
	for name := range l.data.Kinds {
		if !l.seen["kind "+name] {
			errs = append(errs, l.incompatible(Pos{f.Path, 1}, "kinds."+name, "the kind %s is gone, but entities of it may be stored: put it back", name))
		}
	}
	return errors.Join(errs...)
}

// Bytes renders the lock file. Removed components and enums stay in it, so that
// they can come back only unchanged.
func (l *Lock) Bytes(generator string) ([]byte, error) {
	for _, fs := range l.data.Structs {
		slices.SortFunc(fs, func(a, b *lockField) int { return a.Number - b.Number })
	}
	var buf bytes.Buffer
	fmt.Fprintf(&buf, "# Code generated by %s. DO NOT EDIT.\n# The numbers of fields, forever. Check it in.\n", generator)
	enc := yaml.NewEncoder(&buf)
	enc.SetIndent(2)
	var n yaml.Node
	if err := n.Encode(l.data); err != nil {
		return nil, err
	}
	flow(&n)
	if err := enc.Encode(&n); err != nil {
		return nil, err
	}
	return buf.Bytes(), enc.Close()
}

// flow puts every innermost mapping or list on one line.
func flow(n *yaml.Node) bool {
	leaf := true
	for _, c := range n.Content {
		if !flow(c) {
			leaf = false
		}
	}
	if n.Kind == yaml.ScalarNode {
		return true
	}
	if leaf && n.Kind != yaml.DocumentNode {
		n.Style |= yaml.FlowStyle
	}
	return false
}
