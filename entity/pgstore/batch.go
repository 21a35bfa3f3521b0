package pgstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Bounds of a batch.
const (
	maxBatch      = 256
	maxBatchOps   = 2000
	maxBatchBytes = 16 << 20
	// maxRounds bounds the loads for one transaction: one for each level of a
	// cascade and a few more.
	maxRounds = 400

	retryPause    = 20 * time.Millisecond
	maxRetryPause = 500 * time.Millisecond
)

// partitionSize is how many revisions a partition of the log has. It is part
// of the format of the database.
const partitionSize = 65536

// batcher is the one writer of a Store. Only its own goroutine uses it, except
// for the atomics.
type batcher struct {
	s          *Store
	conn       *pgx.Conn
	backend    atomic.Uint32 // pid of conn's backend, to recognise our own notifications
	partitions atomic.Int64  // the log's partitions below this number exist
	carry      *txn          // taken from the queue, too large for the last batch
}

// run commits queued transactions until the store is closing.
func (b *batcher) run() {
	defer close(b.s.batcherDone)
	defer b.disconnect()
	txns := make([]*txn, 0, maxBatch)
	for {
		txns = b.collect(txns[:0])
		if txns == nil {
			return
		}
		if len(txns) > 0 {
			b.commit(txns)
		}
		clear(txns)
	}
}

// collect waits for a transaction and takes the rest of the queue: the
// transactions that arrived while the last batch was written. It returns nil
// when the store is closing.
func (b *batcher) collect(txns []*txn) []*txn {
	ops, size := 0, 0
	take := func(t *txn) bool {
		if len(txns) > 0 && (ops+len(t.req.Ops) > maxBatchOps || size+t.bytes > maxBatchBytes) {
			b.carry = t
			return false
		}
		if t.state.CompareAndSwap(queued, taken) {
			ops, size = ops+len(t.req.Ops), size+t.bytes
			txns = append(txns, t)
		}
		return true
	}
	if t := b.carry; t != nil {
		b.carry = nil
		take(t)
	} else {
		select {
		case <-b.s.closing:
			return nil
		case t := <-b.s.queue:
			take(t)
		}
	}
	for len(txns) < maxBatch {
		select {
		case t := <-b.s.queue:
			if !take(t) {
				return txns
			}
		default:
			return txns
		}
	}
	return txns
}

// outcome is the result of evaluating or committing a batch.
type outcome struct {
	accepted []accepted
	rejected map[*txn]error
	epoch    string
	first    schema.Revision // revisions of its entries in the log; zero: there are none
	last     schema.Revision
	tag      int64
	view     *view
	rest     []*txn // transactions left for another batch, as this one is large enough
}

// ambiguous is the error of a commit that may or may not have happened.
type ambiguous struct {
	out *outcome
	err error
}

func (a *ambiguous) Error() string { return a.err.Error() }
func (a *ambiguous) Unwrap() error { return a.err }

// errPartition requests another partition of the log before the batch can be
// written.
type errPartition int64

func (e errPartition) Error() string {
	return "partition " + strconv.FormatInt(int64(e), 10) + " of the log is missing"
}

// commit applies a batch, retries database failures while there is time, and
// answers every transaction.
func (b *batcher) commit(txns []*txn) {
	began := time.Now()
	pause := retryPause
	unsure := false // an attempt without a trace in the log may have been committed
	for {
		out, err := b.attempt(txns)
		var amb *ambiguous
		if errors.As(err, &amb) {
			// If the batch turns out not to be committed, amb's own error
			// stays.
			var e error
			if out, e = b.resolve(amb, began); e != nil {
				err = e
			} else if out != nil {
				err = nil
			}
			unsure = unsure || out == nil && amb.out.first == 0
		}
		if err == nil {
			b.answer(txns, out, unsure)
			b.s.metrics.batch(len(txns)-len(out.rest), time.Since(began))
			if len(out.rest) == 0 {
				return
			}
			txns, began, pause, unsure = out.rest, time.Now(), retryPause, false
			continue
		}
		var missing errPartition
		if errors.As(err, &missing) {
			ctx, cancel := context.WithTimeout(context.Background(), maintenanceTimeout)
			err = b.s.makePartition(ctx, int64(missing))
			if cancel(); err == nil {
				continue
			}
		}
		if refused(err) {
			b.isolate(txns, err)
			return
		}
		if time.Since(began) > b.s.cfg.RetryFor || b.s.isClosing() {
			b.s.logger.Error("cannot write", "transactions", len(txns), "error", err)
			for _, t := range txns {
				t.finish(entity.TxnResult{}, mapError(err, "write"))
			}
			return
		}
		b.s.logger.Warn("write failed, trying again", "transactions", len(txns), "error", err)
		select {
		case <-b.s.closing:
		case <-time.After(pause):
		}
		pause = min(2*pause, maxRetryPause)
	}
}

// refused reports whether the database rejected the data, as opposed to a
// failed connection.
func refused(err error) bool {
	var classed *errs.Error
	if errors.As(err, &classed) {
		return classed.Class == errs.Internal || classed.Class == errs.Corrupt
	}
	var pg *pgconn.PgError
	return errors.As(err, &pg) && !transient(pg)
}

// isolate finds the transaction that the database rejects, so that it alone
// fails.
func (b *batcher) isolate(txns []*txn, err error) {
	if len(txns) == 1 {
		b.s.logger.Error("the database refused a transaction", "error", err)
		txns[0].finish(entity.TxnResult{}, mapError(err, "write"))
		return
	}
	for _, t := range txns {
		b.commit([]*txn{t})
	}
}

func (b *batcher) answer(txns []*txn, out *outcome, unsure bool) {
	b.s.hub.publish(out)
	for _, a := range out.accepted {
		res := entity.TxnResult{Revision: a.revision}
		if a.d.partial {
			a.t.finish(entity.TxnResult{}, errPartial)
			continue
		}
		if r := a.d.repeat; r != nil {
			res.Revision = r.revision
		}
		res.Records = results(&a)
		a.t.finish(res, nil)
	}
	for _, t := range txns {
		err, ok := out.rejected[t]
		if !ok {
			continue
		}
		if unsure && t.endLease != "" && errs.Is(err, errs.NotFound) {
			err = nil // the earlier attempt ended it
		}
		t.finish(entity.TxnResult{}, err)
	}
}

// attempt runs the batch in one database transaction.
func (b *batcher) attempt(txns []*txn) (*outcome, error) {
	ctx, cancel := context.WithTimeout(context.Background(), b.s.cfg.Attempt)
	defer cancel()
	if err := b.connect(ctx); err != nil {
		return nil, err
	}
	v := newView(b.s.cfg.MaxCascade)
	out := &outcome{rejected: map[*txn]error{}, view: v, tag: rand.Int64()}
	var now time.Time
	var base int64
	l := &loader{}
	l.batch.Queue(sqlBegin)
	l.batch.Queue(sqlLock).QueryRow(func(row pgx.Row) error { return row.Scan(&base, &out.epoch, &now) })
	for _, t := range txns {
		v.want(t)
	}
	l.queue(v)
	if err := l.run(ctx, b.conn); err != nil {
		return nil, b.abort(err)
	}
	now = now.UTC()
	rev := schema.Revision(base)
	rounds, changes := 0, 0
	for i := 0; i < len(txns); {
		if changes >= maxBatchOps {
			out.rest = txns[i:]
			break
		}
		t := txns[i]
		d, err := b.s.evaluate(v, t, rev+1, now)
		if err == errMiss {
			// The other transactions will miss objects too: find out now, load
			// once.
			for _, other := range txns[i+1:] {
				_, _ = b.s.evaluate(v, other, rev+1, now)
			}
			if rounds++; v.missing.empty() {
				return nil, b.abort(errs.New(errs.Internal, "evaluation does not end"))
			}
			if rounds > maxRounds {
				v.missing = wants{}
				out.rejected[t] = errs.New(errs.FailedPrecondition, "the deletion follows references more than %d levels deep", maxRounds).
					WithHint("delete the innermost entities first")
				i, rounds = i+1, 0
				continue
			}
			l := &loader{}
			l.queue(v)
			if err := l.run(ctx, b.conn); err != nil {
				return nil, b.abort(err)
			}
			continue
		}
		i, rounds = i+1, 0
		if err != nil {
			out.rejected[t] = err
			continue
		}
		changes += len(d.changes)
		a := accepted{t: t, d: d, revision: rev}
		if len(d.changes) > 0 {
			rev++
			a.revision = rev
			if out.first == 0 {
				out.first = rev
			}
		}
		if err := encodeChanges(v, &a); err != nil {
			return nil, b.abort(err)
		}
		out.accepted = append(out.accepted, a)
	}
	out.last = rev
	if n := int64(rev) / partitionSize; n >= b.partitions.Load() {
		return nil, b.abort(errPartition(n))
	}
	w := &pgx.Batch{}
	if !out.writes() {
		w.Queue("rollback")
	} else if err := queueWrites(w, v, out.accepted, out.tag, rev); err != nil {
		return nil, b.abort(err)
	}
	if err := b.conn.SendBatch(ctx, w).Close(); err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) && !transient(pg) || !out.writes() {
			return nil, b.abort(err)
		}
		b.disconnect()
		return nil, &ambiguous{out, err}
	}
	return out, nil
}

// writes reports whether the batch has anything to write.
func (o *outcome) writes() bool {
	for _, a := range o.accepted {
		if len(a.d.changes) > 0 || a.d.endedLease != "" || a.d.endsLease != "" {
			return true
		}
	}
	return false
}

// encodeChanges encodes the new versions and makes the changes part of v.
func encodeChanges(v *view, a *accepted) error {
	for _, c := range a.d.changes {
		if c.new == nil {
			continue
		}
		var err error
		if c.new.raw, err = encodeRecord(c.new.rec); err != nil {
			return errs.New(errs.Internal, "encode %s %s: %w", c.key.kind, c.key.id, err)
		}
		c.departed = departed(c)
	}
	v.accept(a.d)
	if id := a.t.req.RequestID; id != "" && len(a.d.changes) > 0 && !a.d.partial {
		v.replies[id] = &reply{hash: a.t.hash, revision: a.revision, draft: a.d}
	}
	return nil
}

// departed returns the indexed values that a change removes; none for a
// deletion.
func departed(c *change) []schema.IndexEntry {
	if c.old == nil || c.new == nil {
		return nil
	}
	var out []schema.IndexEntry
	for _, x := range c.old.ext.Index {
		if !hasValue(c.new.ext.Index, x.Attr, x.Value) {
			out = append(out, x)
		}
	}
	return out
}

// after returns an entity after a transaction; for a deletion the last version.
func after(c *change, rev schema.Revision) *schema.Record {
	if c.new != nil {
		return c.new.rec
	}
	rec := *c.old.rec
	rec.Revision = rev
	return &rec
}

// results returns the entities after a transaction, by operation. For a
// repeated transaction it leaves out those that were only checked.
func results(a *accepted) []schema.Record {
	recs := make([]schema.Record, len(a.t.req.Ops))
	d, rev := a.d, a.revision
	var earlier map[key]*schema.Record
	if r := d.repeat; r != nil {
		rev, earlier = r.revision, r.records
		if r.draft != nil {
			d = r.draft
		}
	}
	for i := range a.t.req.Ops {
		k := keyOf(&a.t.req.Ops[i].Record)
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
