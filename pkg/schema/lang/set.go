package lang

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Set holds the files of all domains; it resolves names across them.
type Set struct {
	Files      []*File // by domain
	Constants  Constants
	enums      map[string]*Enum
	components map[string]*Component
	kinds      map[string]*Kind
}

// LoadSet parses every api/*/schema.yml under root and checks that names
// resolve. Paths in messages are relative to root.
func LoadSet(root string) (*Set, error) {
	paths, err := filepath.Glob(filepath.Join(root, "api", "*", "schema.yml"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("no api/*/schema.yml under %s", root)
	}
	sort.Strings(paths)
	var files []*File
	var errs []error
	known, roots := Constants{}, map[string]*yaml.Node{}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			return nil, fmt.Errorf("read schema: %w", err)
		}
		root, err := Root(p, b)
		if err != nil {
			return nil, err
		}
		_, list := declared(p, root)
		known.Add(list)
		roots[p] = root
	}
	for _, p := range paths {
		f, err := parse(p, roots[p], known)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if want := filepath.Base(filepath.Dir(p)); f.Domain != want {
			errs = append(errs, fmt.Errorf("%s: domain %q is in the folder %q", p, f.Domain, want))
		}
		files = append(files, f)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return newSet(files...)
}

// newSet makes a set of files and checks it.
func newSet(files ...*File) (*Set, error) {
	s := &Set{Constants: Constants{}, enums: map[string]*Enum{}, components: map[string]*Component{}, kinds: map[string]*Kind{}}
	var errs []error
	for _, f := range files {
		errs = append(errs, s.Add(f))
	}
	errs = append(errs, s.Check())
	return s, errors.Join(errs...)
}

// Add adds a file. It may hold further enums and components of a domain that is
// already there (the messages of an rpc.yml). Call Check after the last Add.
func (s *Set) Add(f *File) error {
	s.Files = append(s.Files, f)
	s.Constants.Add(f.Constants)
	var errs []error
	for _, e := range f.Enums {
		n := f.Domain + "." + e.Name
		if old := s.enums[n]; old != nil {
			errs = append(errs, fmt.Errorf("%s: enum %s is already at %s", e.Pos, n, old.Pos))
		}
		e.Domain = f.Domain
		s.enums[n] = e
	}
	for _, c := range f.Components {
		n := f.Domain + "." + c.Name
		if old := s.components[n]; old != nil {
			errs = append(errs, fmt.Errorf("%s: component %s is already at %s", c.Pos, n, old.Pos))
		}
		c.Domain = f.Domain
		s.components[n] = c
	}
	for _, k := range f.Kinds {
		if old := s.kinds[k.Name]; old != nil {
			errs = append(errs, fmt.Errorf("%s: kind %s is already at %s", k.Pos, k.Name, old.Pos))
		}
		k.Domain = f.Domain
		s.kinds[k.Name] = k
	}
	return errors.Join(errs...)
}

func qualify(domain, name string) string {
	if strings.Contains(name, ".") {
		return name
	}
	return domain + "." + name
}

// Enum returns the enum that name means in domain, or nil.
func (s *Set) Enum(domain, name string) *Enum { return s.enums[qualify(domain, name)] }

// Component returns the component that name means in domain, or nil.
func (s *Set) Component(domain, name string) *Component { return s.components[qualify(domain, name)] }

// Kind returns the kind of that name, or nil.
func (s *Set) Kind(name string) *Kind { return s.kinds[name] }

// Kinds returns every kind, ordered by name.
func (s *Set) Kinds() []*Kind {
	var out []*Kind
	for _, k := range s.kinds {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b *Kind) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Check reports names that do not resolve, defaults that break their own
// rules, components that contain themselves and prefixes used twice.
func (s *Set) Check() error {
	var errs []error
	words, prefixes := map[string]*Kind{}, map[string]*Kind{}
	for _, f := range s.Files {
		for _, c := range f.Components {
			errs = append(errs, s.checkFields(f.Domain, c.Name, c.Fields))
			if s.contains(c, c, map[*Component]bool{}) {
				errs = append(errs, fmt.Errorf("%s: component %s contains itself through required components", c.Pos, c.Name))
			}
		}
		for _, k := range f.Kinds {
			errs = append(errs, s.checkFields(f.Domain, k.Name+".spec", k.Spec), s.checkFields(f.Domain, k.Name+".status", k.Status))
			if old := prefixes[k.Prefix]; old != nil {
				errs = append(errs, fmt.Errorf("%s: kind %s: prefix %q is that of %s", k.Pos, k.Name, k.Prefix, old.Name))
			}
			prefixes[k.Prefix] = k
			own := map[string]bool{}
			for _, w := range append([]string{k.Name, k.Plural}, k.Short...) {
				if old := words[w]; old != nil && !own[w] {
					errs = append(errs, fmt.Errorf("%s: kind %s: the name %q is that of %s", k.Pos, k.Name, w, old.Name))
				}
				words[w], own[w] = k, true
			}
		}
	}
	return errors.Join(errs...)
}

// contains reports whether in holds c by value.
func (s *Set) contains(in, c *Component, seen map[*Component]bool) bool {
	if seen[in] {
		return false
	}
	seen[in] = true
	for _, f := range in.Fields {
		if f.Type != Struct || !f.Required {
			continue
		}
		if next := s.Component(in.Domain, f.Component); next != nil && (next == c || s.contains(next, c, seen)) {
			return true
		}
	}
	return false
}

// checkFields reports the errors of fields whose names are resolved in domain;
// owner is for messages.
func (s *Set) checkFields(domain, owner string, fields []*Field) error {
	var errs []error
	for _, f := range fields {
		fail := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("%s: %s.%s: %s", f.Pos, owner, f.Name, fmt.Sprintf(format, args...)))
		}
		switch f.Base() {
		case EnumType:
			e := s.Enum(domain, f.Enum)
			if e == nil {
				fail("enum %q does not exist%s", f.Enum, Suggest(f.Enum, s.names(domain, s.enumNames())))
				break
			}
			if f.Default != nil && !slices.ContainsFunc(e.Values, func(v EnumValue) bool { return v.Name == f.Default }) {
				fail("default %q is not a value of enum %s", f.Default, e.Name)
			}
		case Struct:
			if s.Component(domain, f.Component) == nil {
				fail("component %q does not exist%s", f.Component, Suggest(f.Component, s.names(domain, s.componentNames())))
			}
		case Ref:
			if s.kinds[f.Kind] == nil {
				var known []string
				for n := range s.kinds {
					known = append(known, n)
				}
				fail("kind %q does not exist%s", f.Kind, Suggest(f.Kind, known))
			}
		}
		if f.Required && f.Default != nil {
			fail("required and default exclude each other")
		}
		if f.Min != nil && f.Max != nil && less(f.Max, f.Min) {
			fail("max is below min")
		}
		if f.Type == Int || f.Type == Float || f.Type == Duration {
			if f.Default != nil && f.Min != nil && less(f.Default, f.Min) {
				fail("default is below min")
			}
			if f.Default != nil && f.Max != nil && less(f.Max, f.Default) {
				fail("default is above max")
			}
		}
	}
	return errors.Join(errs...)
}

// less compares two literals of one type.
func less(a, b any) bool {
	switch a := a.(type) {
	case int64:
		b, ok := b.(int64)
		return ok && a < b
	case float64:
		b, ok := b.(float64)
		return ok && a < b
	case time.Duration:
		b, ok := b.(time.Duration)
		return ok && a < b
	}
	return false
}

func (s *Set) enumNames() []string {
	var out []string
	for n := range s.enums {
		out = append(out, n)
	}
	return out
}

func (s *Set) componentNames() []string {
	var out []string
	for n := range s.components {
		out = append(out, n)
	}
	return out
}

// names adds the short names that domain can use.
func (s *Set) names(domain string, qualified []string) []string {
	out := slices.Clone(qualified)
	for _, n := range qualified {
		if short, ok := strings.CutPrefix(n, domain+"."); ok {
			out = append(out, short)
		}
	}
	return out
}
