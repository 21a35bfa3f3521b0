package listing

import (
	"bytes"
	"iter"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
)

// Memory is a store that has its entities in memory. Each object has its extracted
// values.
type Memory interface {
	// Entities returns the entities of a kind with ids after this one, by id.
	Entities(kind, after string) iter.Seq[*eval.Object]
	// Index returns the entities of a kind with their values of an index, by value
	// and id, after this value and id.
	Index(kind, attr string, value []byte, after string) iter.Seq2[[]byte, *eval.Object]
}

// Select adds the rows that SQL selects from a database.
func (r *Rows) Select(m Memory) error {
	l := r.l
	selects := func(o *eval.Object) bool {
		// See SQL about the revision.
		return (l.First() || int64(o.Rec.Revision) <= l.from.Revision) && matchesMeta(o.Rec, l.q) && l.matches(o.Ext, &item{})
	}
	add := func(value []byte, o *eval.Object) (more bool, err error) {
		if selects(o) {
			err = r.Add(o.Raw, value)
		}
		return err == nil && !r.full, err
	}
	if l.by != nil {
		value, after := l.lo, ""
		if !l.First() {
			value, after = l.from.Value, l.from.After
		}
		for v, o := range m.Index(l.q.Kind, l.by.Attr(), value, after) {
			if l.hi != nil && bytes.Compare(v, l.hi) >= 0 {
				break
			}
			if more, err := add(v, o); !more {
				return err
			}
		}
		return nil
	}
	// The entities with one value of an index are in the order of their ids.
	if attr, value, ok := l.equal(); ok {
		for v, o := range m.Index(l.q.Kind, attr, value, l.from.After) {
			if !bytes.Equal(v, value) {
				break
			}
			if more, err := add(nil, o); !more {
				return err
			}
		}
		return nil
	}
	for o := range m.Entities(l.q.Kind, l.from.After) {
		if more, err := add(nil, o); !more {
			return err
		}
	}
	return nil
}

// equal returns an indexed value that every entity of the list has.
func (l *Listing) equal() (attr string, value []byte, ok bool) {
	for _, m := range l.q.Index {
		if m.Op == entity.IndexEq {
			return m.Attr, m.Value, true
		}
	}
	for name, v := range l.q.Labels {
		return entity.LabelPrefix + name, []byte(v), true
	}
	return "", nil, false
}
