package schema

import (
	"math"
	"strconv"
	"strings"

	"github.com/fxamacker/cbor/v2"

	"miren.dev/runtime/pkg/errs"
)

// Attr returns the attribute of a path, nil if the kind has none.
func (k *Kind) Attr(path string) *Attr {
	for i := range k.Attrs {
		if k.Attrs[i].Path == path {
			return &k.Attrs[i]
		}
	}
	return nil
}

// InSpec reports whether the attribute is of the spec, not of the status.
func (a *Attr) InSpec() bool { return strings.HasPrefix(a.Path, "spec.") }

// edit replaces the encoded value of the attribute in r by the result of
// change; nil means absent. It leaves every other field as it is, also fields
// that this program does not know. It does not modify memory that r shares with
// other records.
func (a *Attr) edit(r *Record, change func(cbor.RawMessage) (cbor.RawMessage, error)) error {
	if a.Number == 0 {
		return errs.New(errs.Internal, "attribute %s has no number", a.Path)
	}
	half := &r.Status
	if a.InSpec() {
		half = &r.Spec
	}
	fields := map[int]cbor.RawMessage{}
	if len(*half) > 0 {
		if err := Unmarshal(*half, &fields); err != nil {
			return errs.Wrap(err, "%s %s", r.Kind, r.ID)
		}
	}
	v, err := change(fields[a.Number])
	if err != nil {
		return errs.Wrap(err, "%s of %s %s", a.Path, r.Kind, r.ID)
	}
	if v == nil {
		delete(fields, a.Number)
	} else {
		fields[a.Number] = v
	}
	*half, err = Marshal(fields)
	return err
}

// AddInt adds delta to an attribute of type int and returns the sum. An absent
// attribute counts as its default, or as 0. InvalidArgument if the sum does not
// fit an int64.
func (a *Attr) AddInt(r *Record, delta int64) (sum int64, err error) {
	err = a.edit(r, func(v cbor.RawMessage) (cbor.RawMessage, error) {
		var n int64
		switch {
		case v != nil:
			if err := Unmarshal(v, &n); err != nil {
				return nil, err
			}
		case a.Default != "":
			if n, err = strconv.ParseInt(a.Default, 10, 64); err != nil {
				return nil, errs.New(errs.Internal, "default %q is not an integer", a.Default)
			}
		}
		if delta > 0 && n > math.MaxInt64-delta || delta < 0 && n < math.MinInt64-delta {
			return nil, errs.New(errs.InvalidArgument, "%d and %d do not fit into an integer", n, delta)
		}
		sum = n + delta
		return Marshal(sum)
	})
	return sum, err
}

// ClearRef removes the references to id from an attribute that is a reference,
// or a list or map of them.
func (a *Attr) ClearRef(r *Record, id ID) error {
	return a.edit(r, func(v cbor.RawMessage) (cbor.RawMessage, error) {
		if v == nil {
			return nil, nil
		}
		switch {
		case strings.HasPrefix(a.Type, "list "):
			var ids, rest []ID
			if err := Unmarshal(v, &ids); err != nil {
				return nil, err
			}
			for _, e := range ids {
				if e != id {
					rest = append(rest, e)
				}
			}
			if len(rest) == 0 {
				return nil, nil
			}
			return Marshal(rest)
		case strings.HasPrefix(a.Type, "map "):
			ids := map[string]ID{}
			if err := Unmarshal(v, &ids); err != nil {
				return nil, err
			}
			for k, e := range ids {
				if e == id {
					delete(ids, k)
				}
			}
			if len(ids) == 0 {
				return nil, nil
			}
			return Marshal(ids)
		}
		var have ID
		if err := Unmarshal(v, &have); err != nil || have != id {
			return v, err
		}
		return nil, nil
	})
}
