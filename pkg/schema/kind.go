package schema

import (
	"maps"

	"miren.dev/runtime/pkg/errs"
)

// Attr describes one attribute of a kind, for tools that are not written for
// the kind.
type Attr struct {
	Path     string // "spec.app"
	Number   int    // number of the field in the encoded spec or status
	Type     string // as in the schema: "ref app", "list of string"
	Doc      string
	Required bool
	Default  string // as in the schema; "" if none
	Indexed  bool
	Unique   bool
	Choices  []string // values of an enum
}

// Extractor is implemented by every generated entity type.
type Extractor interface {
	Object
	FieldsValidator
	// Extract adds the values that the store indexes or enforces.
	Extract(e *Extracted)
}

// EncodeObject is Kind.Encode of every generated kind: it validates o and
// renders it as a record.
func EncodeObject(o Object) (*Record, error) {
	k := o.EntityKind()
	if err := validateObject(o); err != nil {
		return nil, err
	}
	r := &Record{Meta: *o.GetMeta(), Kind: k.Name}
	r.Labels = maps.Clone(r.Labels)
	var err error
	if r.Spec, err = Marshal(o.SpecPtr()); err != nil {
		return nil, errs.Wrap(err, "%s %s: spec", k.Name, r.ID)
	}
	if r.Status, err = Marshal(o.StatusPtr()); err != nil {
		return nil, errs.Wrap(err, "%s %s: status", k.Name, r.ID)
	}
	return r, checkSize(r)
}

func checkSize(r *Record) error {
	if n := len(r.Spec) + len(r.Status); n > MaxRecord {
		return errs.New(errs.InvalidArgument, "%s %s: spec and status have %d bytes, more than %d", r.Kind, r.ID, n, MaxRecord).
			With("kind", r.Kind).With("id", string(r.ID))
	}
	return nil
}

func validateObject(o Object) error {
	var v Validator
	k := o.EntityKind()
	validateMeta(&v, k, o.GetMeta())
	if f, ok := o.(FieldsValidator); ok {
		f.ValidateFields(&v)
	}
	if err := v.Err(); err != nil {
		return errs.New(errs.InvalidArgument, "%s %s: %w", k.Name, describe(o.GetMeta()), err).
			With("kind", k.Name).With("id", string(o.GetMeta().ID)).With("attr", errs.Detail(err, "attr"))
	}
	return nil
}

func describe(m *Meta) string {
	switch {
	case m.Name != "":
		return m.Name
	case m.ID != "":
		return string(m.ID)
	}
	return "(new)"
}

// DecodeRecord fills o, which must be new with defaults applied, from r. A
// record without spec or status leaves the defaults. Undecodable bytes are an
// error of class Corrupt.
func DecodeRecord(r *Record, o Object) error {
	k := o.EntityKind()
	if r.Kind != k.Name {
		return errs.New(errs.InvalidArgument, "a record of kind %q is not a %s", r.Kind, k.Name)
	}
	m := o.GetMeta()
	*m = r.Meta
	m.Labels = maps.Clone(r.Labels)
	if len(r.Spec) > 0 {
		if err := Unmarshal(r.Spec, o.SpecPtr()); err != nil {
			return errs.Wrap(err, "%s %s: spec", r.Kind, r.ID)
		}
	}
	if len(r.Status) > 0 {
		if err := Unmarshal(r.Status, o.StatusPtr()); err != nil {
			return errs.Wrap(err, "%s %s: status", r.Kind, r.ID)
		}
	}
	return nil
}

// ExtractRecord is Kind.Extract of every generated kind: it decodes r into o,
// validates it as EncodeObject does, and returns what the store needs.
func ExtractRecord(r *Record, o Extractor) (Extracted, error) {
	var e Extracted
	if err := checkSize(r); err != nil {
		return e, err
	}
	if err := DecodeRecord(r, o); err != nil {
		return e, err
	}
	if err := validateObject(o); err != nil {
		return e, err
	}
	o.Extract(&e)
	return e, nil
}
