package eval

import (
	"bytes"
	"slices"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// maxRounds bounds the loads for one transaction: one for each level of a
// cascade and a few more.
const maxRounds = 400

// Accepted is a transaction of a batch that will be committed.
type Accepted struct {
	t        *Txn
	Draft    *Draft
	Revision schema.Revision // zero: it changes no entity
}

// Outcome is the result of evaluating or committing a batch.
type Outcome struct {
	e        *Evaluator
	Accepted []Accepted
	rejected map[*Txn]error
	Epoch    string
	First    schema.Revision // revisions of its entries in the log; zero: there are none
	Last     schema.Revision
	View     *View
	Rest     []*Txn // transactions left for another batch, as this one is large enough
}

// NewOutcome returns the outcome of a batch that is to be evaluated.
func (e *Evaluator) NewOutcome() *Outcome {
	return &Outcome{e: e, rejected: map[*Txn]error{}, View: e.NewView()}
}

// Want makes the view's missing list name what evaluating txns will need, as
// far as that can be foreseen.
func (out *Outcome) Want(txns []*Txn) {
	for _, t := range txns {
		out.View.want(t)
	}
}

// Evaluate decides about the transactions of a batch, one after the other. base
// is the revision of the last committed transaction. load loads into the view
// what it misses. The error is the one of load, or Internal.
func (out *Outcome) Evaluate(txns []*Txn, base schema.Revision, now time.Time, load func(*View) error) error {
	e, v, rev := out.e, out.View, base
	rounds, changes := 0, 0
	for i := 0; i < len(txns); {
		if changes >= maxBatchOps {
			out.Rest = txns[i:]
			break
		}
		t := txns[i]
		d, err := e.evaluate(v, t, rev+1, now)
		if err == errMiss {
			// The other transactions will miss objects too: find out now, load
			// once.
			for _, other := range txns[i+1:] {
				_, _ = e.evaluate(v, other, rev+1, now)
			}
			if rounds++; v.Missing.empty() {
				return errs.New(errs.Internal, "evaluation does not end")
			}
			if rounds > maxRounds {
				v.Missing = Wants{}
				out.rejected[t] = errs.New(errs.FailedPrecondition, "the deletion follows references more than %d levels deep", maxRounds).
					WithHint("delete the innermost entities first")
				i, rounds = i+1, 0
				continue
			}
			if err := load(v); err != nil {
				return err
			}
			continue
		}
		i, rounds = i+1, 0
		if err != nil {
			out.rejected[t] = err
			continue
		}
		changes += len(d.Changes)
		a := Accepted{t: t, Draft: d, Revision: rev}
		if len(d.Changes) > 0 {
			rev++
			a.Revision = rev
			if out.First == 0 {
				out.First = rev
			}
		}
		if err := encodeChanges(v, &a); err != nil {
			return err
		}
		out.Accepted = append(out.Accepted, a)
	}
	out.Last = rev
	return nil
}

// Answer answers every transaction of the batch but those of rest. unsure: an
// earlier attempt, which left no trace in the log, may have been committed.
func (out *Outcome) Answer(txns []*Txn, unsure bool) {
	for _, a := range out.Accepted {
		res := entity.TxnResult{Revision: a.Revision}
		if a.Draft.partial {
			a.t.Finish(entity.TxnResult{}, errPartial)
			continue
		}
		if r := a.Draft.repeat; r != nil {
			res.Revision = r.Revision
		}
		res.Records = results(&a)
		a.t.Finish(res, nil)
	}
	for _, t := range txns {
		err, ok := out.rejected[t]
		if !ok {
			continue
		}
		if unsure && t.EndLease != "" && errs.Is(err, errs.NotFound) {
			err = nil // the earlier attempt ended it
		}
		t.Finish(entity.TxnResult{}, err)
	}
}

// Writes reports whether the batch has anything to write.
func (o *Outcome) Writes() bool {
	for _, a := range o.Accepted {
		if len(a.Draft.Changes) > 0 || a.Draft.endedLease != "" || a.Draft.endsLease != "" {
			return true
		}
	}
	return false
}

// encodeChanges encodes the new versions and makes the changes part of v.
func encodeChanges(v *View, a *Accepted) error {
	for _, c := range a.Draft.Changes {
		if c.New == nil {
			continue
		}
		var err error
		if c.New.Raw, err = encodeRecord(c.New.Rec); err != nil {
			return errs.New(errs.Internal, "encode %s %s: %w", c.key.Kind, c.key.ID, err)
		}
		c.Departed = departed(c)
	}
	v.accept(a.Draft)
	if id := a.t.Req.RequestID; id != "" && len(a.Draft.Changes) > 0 && !a.Draft.partial {
		v.Replies[id] = &Reply{Hash: a.t.hash, Revision: a.Revision, draft: a.Draft}
	}
	return nil
}

// departed returns the indexed values that a change removes; none for a
// deletion.
func departed(c *Change) []schema.IndexEntry {
	if c.Old == nil || c.New == nil {
		return nil
	}
	var out []schema.IndexEntry
	for _, x := range c.Old.Ext.Index {
		if !HasValue(c.New.Ext.Index, x.Attr, x.Value) {
			out = append(out, x)
		}
	}
	return out
}

// after returns an entity after a transaction; for a deletion the last version.
func after(c *Change, rev schema.Revision) *schema.Record {
	if c.New != nil {
		return c.New.Rec
	}
	rec := *c.Old.Rec
	rec.Revision = rev
	return &rec
}

// results returns the entities after a transaction, by operation. For a
// repeated transaction it leaves out those that were only checked.
func results(a *Accepted) []schema.Record {
	recs := make([]schema.Record, len(a.t.Req.Ops))
	d, rev := a.Draft, a.Revision
	var earlier map[Key]*schema.Record
	if r := d.repeat; r != nil {
		rev, earlier = r.Revision, r.Records
		if r.draft != nil {
			d = r.draft
		}
	}
	for i := range a.t.Req.Ops {
		k := KeyOf(&a.t.Req.Ops[i].Record)
		rec := earlier[k]
		if c := d.byKey[k]; c != nil {
			rec = after(c, rev)
		} else if d.checked[k] != nil {
			rec = d.checked[k]
		}
		if rec != nil {
			recs[i] = *rec
		}
	}
	return recs
}

// HasValue reports whether list has this value for the attribute.
func HasValue(list []schema.IndexEntry, attr string, value []byte) bool {
	return slices.ContainsFunc(list, func(x schema.IndexEntry) bool { return x.Attr == attr && bytes.Equal(x.Value, value) })
}
