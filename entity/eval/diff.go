package eval

import (
	"bytes"
	"slices"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// PrevMargin: a change of an entity whose previous change is this many
// revisions back or more carries the previous state in the log, so that a
// listing at an older revision finds it although the log was compacted. The
// log is never cut closer than this to its floor.
const PrevMargin = 4096

// Types of log entries, as stored.
const (
	logPut    int16 = 1
	LogDelete int16 = 2
)

// EntityDiff is the net change of the entities of a batch.
type EntityDiff struct {
	Insert, Update []*Object
	Delete         []Key
}

// EntityDiff returns the net change of each entity.
func (v *View) EntityDiff() EntityDiff {
	var d EntityDiff
	for k, old := range v.Origin {
		switch o := v.Objects[k]; {
		case o == nil && old == nil:
		case o == nil:
			d.Delete = append(d.Delete, k)
		case old == nil:
			d.Insert = append(d.Insert, o)
		default:
			d.Update = append(d.Update, o)
		}
	}
	return d
}

// UniqueRow is a unique value and the id of its entity.
type UniqueRow struct {
	UniqueKey
	ID string
}

// RefRow is a reference of an entity.
type RefRow struct {
	From Key
	schema.RefEntry
}

// KeyDiff is the net change of indexes, unique values and references. All
// removals come before all additions, so that values may change owners.
type KeyDiff struct {
	DeleteIndex, InsertIndex   []UniqueRow // without a scope
	DeleteUnique, InsertUnique []UniqueRow
	DeleteRefs, InsertRefs     []RefRow
}

// KeyDiff returns the net changes of what is extracted from the entities.
func (v *View) KeyDiff() KeyDiff {
	var d KeyDiff
	for k, old := range v.Origin {
		o := v.Objects[k]
		var was, is schema.Extracted
		var wasU, isU []UniqueKey
		if old != nil {
			was, wasU = *old.Ext, uniques(old.Rec, old.Ext)
		}
		if o != nil {
			is, isU = *o.Ext, uniques(o.Rec, o.Ext)
		}
		eq := func(a schema.IndexEntry) func(schema.IndexEntry) bool {
			return func(b schema.IndexEntry) bool { return a.Attr == b.Attr && bytes.Equal(a.Value, b.Value) }
		}
		index := func(x schema.IndexEntry) UniqueRow {
			return UniqueRow{UniqueKey{Kind: k.Kind, Attr: x.Attr, Value: string(x.Value)}, k.ID}
		}
		for _, x := range was.Index {
			if !slices.ContainsFunc(is.Index, eq(x)) {
				d.DeleteIndex = append(d.DeleteIndex, index(x))
			}
		}
		for i, x := range is.Index {
			if !slices.ContainsFunc(was.Index, eq(x)) && !slices.ContainsFunc(is.Index[:i], eq(x)) {
				d.InsertIndex = append(d.InsertIndex, index(x))
			}
		}
		for _, u := range wasU {
			if !slices.Contains(isU, u) {
				d.DeleteUnique = append(d.DeleteUnique, UniqueRow{u, k.ID})
			}
		}
		for i, u := range isU {
			if !slices.Contains(wasU, u) && !slices.Contains(isU[:i], u) {
				d.InsertUnique = append(d.InsertUnique, UniqueRow{u, k.ID})
			}
		}
		for _, r := range was.Refs {
			if !slices.Contains(is.Refs, r) {
				d.DeleteRefs = append(d.DeleteRefs, RefRow{k, r})
			}
		}
		for i, r := range is.Refs {
			if !slices.Contains(was.Refs, r) && !slices.Contains(is.Refs[:i], r) {
				d.InsertRefs = append(d.InsertRefs, RefRow{k, r})
			}
		}
	}
	return d
}

// LogRow is one change in the log.
type LogRow struct {
	Revision     schema.Revision
	Seq          int // within the revision
	Type         int16
	Key          Key
	PrevRevision schema.Revision // of the entity's previous change; 0: it is new
	Record       []byte          // the new state; of a deletion the last one
	Prev         []byte          // the state before, only where the log may no longer hold it
	Departed     []byte          // the indexed values that the change removed
	Request      string          // in the first entry of a transaction with a request id
	RequestHash  []byte
}

// LogRows returns every change of every transaction.
func (out *Outcome) LogRows() ([]LogRow, error) {
	var rows []LogRow
	for _, a := range out.Accepted {
		for i, c := range a.Draft.Changes {
			r := LogRow{Revision: a.Revision, Seq: i, Type: logPut, Key: c.key}
			if i == 0 && a.t.Req.RequestID != "" && !a.Draft.partial {
				r.Request, r.RequestHash = a.t.Req.RequestID, a.t.hash
			}
			var err error
			if r.Departed, err = encodeValues(c.Departed); err != nil {
				return nil, errs.New(errs.Internal, "encode indexed values of %s %s: %w", c.key.Kind, c.key.ID, err)
			}
			if c.Old != nil {
				r.PrevRevision = c.Old.Rec.Revision
			}
			if c.New == nil {
				r.Type, r.Record = LogDelete, c.Old.Raw
			} else if r.Record = c.New.Raw; c.Old != nil && a.Revision-r.PrevRevision >= PrevMargin {
				r.Prev = c.Old.Raw
			}
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// Leases returns the leases that the batch ends, and those that have ended with
// entities left.
func (out *Outcome) Leases() (ended, ending []string) {
	for _, a := range out.Accepted {
		if a.Draft.endedLease != "" {
			ended = append(ended, string(a.Draft.endedLease))
		}
		if a.Draft.endsLease != "" {
			ending = append(ending, string(a.Draft.endsLease))
		}
	}
	return ended, ending
}
