package schema

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/suggest"
)

// Bounds that hold for every entity.
const (
	MaxID         = 64
	MaxName       = 63
	MaxLabels     = 64
	MaxLabelKey   = 128
	MaxLabelValue = 256
	MaxRecord     = 1 << 20 // bytes of spec and status together, encoded

	maxMapKey   = 1024
	maxProblems = 10
)

// NamePattern is the pattern of names of entities.
const NamePattern = `^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`

var (
	nameRE     = regexp.MustCompile(NamePattern)
	labelKeyRE = regexp.MustCompile(`^[a-z0-9]([a-z0-9._/-]{0,126}[a-z0-9])?$`)
)

// Validator collects the problems of a value, each with its path. The zero
// Validator is ready to use.
type Validator struct {
	path  []string
	errs  []string
	first string
	more  int
}

// FieldsValidator is implemented by every generated struct.
type FieldsValidator interface{ ValidateFields(v *Validator) }

// Validate checks x and returns an error of class invalid_argument that names
// every wrong field, with the first one's path in the detail "attr".
func Validate(x FieldsValidator) error {
	var v Validator
	x.ValidateFields(&v)
	return v.Err()
}

// Err returns everything that was found, or nil.
func (v *Validator) Err() error {
	if len(v.errs) == 0 {
		return nil
	}
	msg := strings.Join(v.errs, "; ")
	if v.more > 0 {
		msg += fmt.Sprintf("; and %d more", v.more)
	}
	return errs.New(errs.InvalidArgument, "%s", msg).With("attr", v.first)
}

// failf records a problem of the field name below the current path.
func (v *Validator) failf(name, format string, args ...any) {
	if len(v.errs) == maxProblems {
		v.more++
		return
	}
	path := strings.Join(append(slices.Clone(v.path), name), ".")
	path = strings.TrimSuffix(path, ".")
	if v.first == "" {
		v.first = path
	}
	v.errs = append(v.errs, path+": "+fmt.Sprintf(format, args...))
}

// In validates x at the field name.
func (v *Validator) In(name string, x FieldsValidator) {
	v.path = append(v.path, name)
	x.ValidateFields(v)
	v.path = v.path[:len(v.path)-1]
}

// InElem validates the element i of the list name.
func (v *Validator) InElem(name string, i int, x FieldsValidator) { v.In(ElemName(name, i), x) }

// InKey validates the element k of the map name.
func (v *Validator) InKey(name, k string, x FieldsValidator) { v.In(KeyName(name, k), x) }

// ElemName is the name of the element i of the list name.
func ElemName(name string, i int) string { return name + "[" + strconv.Itoa(i) + "]" }

// KeyName is the name of the element k of the map name.
func KeyName(name, k string) string { return name + "[" + strconv.Quote(clip(k)) + "]" }

func clip(s string) string {
	const limit = 64
	if len(s) > limit {
		return s[:limit] + "..."
	}
	return s
}

// Keys returns the keys of m in order.
func Keys[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }

// Required fails unless the field is there.
func (v *Validator) Required(name string, there bool) {
	if !there {
		v.failf(name, "is required")
	}
}

// MinLen fails if n is below limit.
func (v *Validator) MinLen(name string, n, limit int) {
	if n < limit {
		v.failf(name, "length %d is below the minimum %d", n, limit)
	}
}

// MaxLen fails if n is above limit.
func (v *Validator) MaxLen(name string, n, limit int) {
	if n > limit {
		v.failf(name, "length %d is above the maximum %d", n, limit)
	}
}

// Pattern fails unless re matches s.
func (v *Validator) Pattern(name, s string, re *regexp.Regexp) {
	if !re.MatchString(s) {
		v.failf(name, "%q does not match %s", clip(s), re)
	}
}

// MapKey fails unless k can be the key of the map name.
func (v *Validator) MapKey(name, k string) {
	if k == "" || len(k) > maxMapKey {
		v.failf(name, "a key of %d bytes; 1 to %d are possible", len(k), maxMapKey)
	}
}

// Ref fails unless id has the form of an id.
func (v *Validator) Ref(name, id string) {
	if !validID(ID(id)) {
		v.failf(name, "%q is not an id", clip(id))
	}
}

// Secret fails unless s is sealed.
func (v *Validator) Secret(name string, s Secret) {
	switch {
	case s.keep:
		v.failf(name, "%s keeps the value that is there, but there is none", redacted)
	case !s.Sealed():
		v.failf(name, "the secret is not sealed")
	}
}

// CheckMin fails if x is below limit.
func CheckMin[T cmp.Ordered](v *Validator, name string, x, limit T) {
	if !(x >= limit) { // also for NaN
		v.failf(name, "%s is below the minimum %s", quantity(name, x), quantity(name, limit))
	}
}

// CheckMax fails if x is above limit.
func CheckMax[T cmp.Ordered](v *Validator, name string, x, limit T) {
	if !(x <= limit) {
		v.failf(name, "%s is above the maximum %s", quantity(name, x), quantity(name, limit))
	}
}

// quantity writes the value of a field; a number of bytes also as a size.
func quantity(field string, x any) string {
	if n, ok := x.(int64); ok && n >= 1<<10 && strings.HasSuffix(field, "_bytes") {
		return fmt.Sprintf("%d (%s)", n, CellBytes(n))
	}
	return fmt.Sprint(x)
}

// Enum is implemented by every generated enum.
type Enum interface {
	~string
	Valid() bool
	Choices() []string
}

// CheckEnum fails unless x is one of its choices.
func CheckEnum[T Enum](v *Validator, name string, x T) {
	if !x.Valid() {
		hint := ""
		if s := suggest.Nearest(string(x), x.Choices()); s != "" {
			hint = fmt.Sprintf("; did you mean %q?", s)
		}
		v.failf(name, "%q is not one of %s%s", clip(string(x)), strings.Join(x.Choices(), ", "), hint)
	}
}

// validID reports whether id has the form of an id.
func validID(id ID) bool {
	if id == "" || len(id) > MaxID {
		return false
	}
	for _, c := range []byte(id) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// ValidName reports whether name can be the name of an entity: a DNS label in
// lower case.
func ValidName(name string) bool { return nameRE.MatchString(name) }

// validateMeta checks the fields that the writer of an entity of kind k may
// set.
func validateMeta(v *Validator, k *Kind, m *Meta) {
	if m.ID != "" && (!validID(m.ID) || !strings.HasPrefix(string(m.ID), k.Prefix+"-")) {
		v.failf("meta.id", "%q is not an id of kind %s (%s-...)", clip(string(m.ID)), k.Name, k.Prefix)
	}
	switch {
	case k.Scope == ScopeProject && m.Project == "":
		v.failf("meta.project", "is required: a %s belongs to a project", k.Name)
	case k.Scope == ScopeProject && !validID(m.Project):
		v.failf("meta.project", "%q is not an id", clip(string(m.Project)))
	case k.Scope == ScopeCluster && m.Project != "":
		v.failf("meta.project", "must be empty: a %s belongs to no project", k.Name)
	}
	switch {
	case m.Name == "" && k.NameRequired:
		v.failf("meta.name", "is required")
	case m.Name != "" && !ValidName(m.Name):
		v.failf("meta.name", "%q is not a name: 1 to %d of a-z, 0-9 and -, not - at the ends", clip(m.Name), MaxName)
	}
	if len(m.Labels) > MaxLabels {
		v.failf("meta.labels", "%d labels are more than %d", len(m.Labels), MaxLabels)
		return
	}
	for _, key := range Keys(m.Labels) {
		if !labelKeyRE.MatchString(key) {
			v.failf("meta.labels", "%q is not a key: 1 to %d of a-z, 0-9 and . _ / -, the ends a-z or 0-9", clip(key), MaxLabelKey)
		}
		if n := len(m.Labels[key]); n > MaxLabelValue {
			v.failf(KeyName("meta.labels", key), "length %d is above the maximum %d", n, MaxLabelValue)
		}
	}
}
