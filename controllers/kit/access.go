package kit

import (
	"fmt"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Access declares what a writer, usually a controller, does in the store.
// Runtime.Check refuses two writers that own the same field. Tests check each
// controller against its declaration (see kittest).
type Access struct {
	Reads   []*schema.Kind // kinds besides those that it watches
	Creates []*schema.Kind
	Deletes []*schema.Kind
	Owns    []Field // fields that it alone writes
	Shares  []Share // fields that it writes although another writer owns them
}

// Field names a part of the entities of a kind. Path is "spec", "status", or
// one of their attributes and what is in it ("spec.node"), "name", "labels",
// "lease", or one label ("labels.key").
type Field struct {
	Kind *schema.Kind
	Path string
}

// Fields returns fields of one kind.
func Fields(k *schema.Kind, paths ...string) []Field {
	var out []Field
	for _, p := range paths {
		out = append(out, Field{k, p})
	}
	return out
}

func (f Field) String() string { return f.Kind.Name + "." + f.Path }

// Covers reports whether o is f or a part of it.
func (f Field) Covers(o Field) bool {
	return f.Kind.Name == o.Kind.Name && (f.Path == o.Path || strings.HasPrefix(o.Path, f.Path+"."))
}

// overlaps reports whether a write of one field may be a write of the other.
func (f Field) overlaps(o Field) bool { return f.Covers(o) || o.Covers(f) }

// check fails if the kind has no such field.
func (f Field) check() error {
	switch root, _, _ := strings.Cut(f.Path, "."); root {
	case "spec", "status":
		if f.Path == root || slices.ContainsFunc(f.Kind.Attrs, func(a schema.Attr) bool { return f.Covers(Field{f.Kind, a.Path}) }) {
			return nil
		}
	case "labels":
		return nil
	case "name", "lease":
		if f.Path == root {
			return nil
		}
	}
	return errs.New(errs.InvalidArgument, "%s is not a field of %s", f.Path, f.Kind.Name)
}

// Share is a write of a field that another writer owns. Each is an exception
// with a condition, under which the owner leaves the field alone or wants the
// same.
type Share struct {
	Field Field
	Owner string // name of the writer
	Why   string // for people: when and why it writes
	// When reports whether the condition holds for a write that changes before
	// into after. before has the revision that the write is conditional on.
	When func(before, after schema.Object) bool
}

// writer is an Access with the name of its holder.
type writer struct {
	name string
	Access
}

// checkAccess fails if two writers own the same field, or one shares a field
// that its owner does not own.
func checkAccess(writers []writer) error {
	var problems []string
	for i, w := range writers {
		for _, f := range w.fields() {
			if err := f.check(); err != nil {
				problems = append(problems, fmt.Sprintf("%s declares %s: %v", w.name, f, err))
			}
		}
		for _, o := range writers[:i] {
			for _, f := range w.Owns {
				for _, g := range o.Owns {
					if f.overlaps(g) {
						problems = append(problems, fmt.Sprintf("%s has two writers: %s and %s", f, o.name, w.name))
					}
				}
			}
		}
		for _, s := range w.Shares {
			owned := slices.ContainsFunc(writers, func(o writer) bool {
				return o.name == s.Owner && o.name != w.name && slices.ContainsFunc(o.Owns, func(f Field) bool { return f.Covers(s.Field) })
			})
			if !owned {
				problems = append(problems, fmt.Sprintf("%s shares %s with %s, which does not own it", w.name, s.Field, s.Owner))
			}
			if s.Why == "" || s.When == nil {
				problems = append(problems, fmt.Sprintf("%s shares %s without a reason or a condition", w.name, s.Field))
			}
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return errs.New(errs.FailedPrecondition, "%s", strings.Join(problems, "; ")).
		WithHint("give the field one owner; what another writes of it is a Share with a condition")
}

func (a Access) fields() []Field {
	out := slices.Clone(a.Owns)
	for _, s := range a.Shares {
		out = append(out, s.Field)
	}
	return out
}
