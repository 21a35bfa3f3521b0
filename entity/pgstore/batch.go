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
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// The pause between two attempts doubles.
const (
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
}

// run commits queued transactions until the store is closing.
func (b *batcher) run() {
	defer close(b.s.batcherDone)
	defer b.disconnect()
	txns := make([]*eval.Txn, 0, eval.MaxBatch)
	for {
		txns = b.s.queue.Collect(txns[:0])
		if txns == nil {
			return
		}
		if len(txns) > 0 {
			b.commit(txns)
		}
		clear(txns)
	}
}

// ambiguous is the error of a commit that may or may not have happened.
type ambiguous struct {
	out *eval.Outcome
	tag int64 // of the batch, in the log
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
func (b *batcher) commit(txns []*eval.Txn) {
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
			unsure = unsure || out == nil && amb.out.First == 0
		}
		if err == nil {
			b.s.hub.Publish(out)
			out.Answer(txns, unsure)
			b.s.metrics.batch(len(txns)-len(out.Rest), time.Since(began))
			if len(out.Rest) == 0 {
				return
			}
			txns, began, pause, unsure = out.Rest, time.Now(), retryPause, false
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
				t.Finish(entity.TxnResult{}, mapError(err, "write"))
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
func (b *batcher) isolate(txns []*eval.Txn, err error) {
	if len(txns) == 1 {
		b.s.logger.Error("the database refused a transaction", "error", err)
		txns[0].Finish(entity.TxnResult{}, mapError(err, "write"))
		return
	}
	for _, t := range txns {
		b.commit([]*eval.Txn{t})
	}
}

// attempt runs the batch in one database transaction.
func (b *batcher) attempt(txns []*eval.Txn) (*eval.Outcome, error) {
	ctx, cancel := context.WithTimeout(context.Background(), b.s.cfg.Attempt)
	defer cancel()
	if err := b.connect(ctx); err != nil {
		return nil, err
	}
	out := b.s.eval.NewOutcome()
	tag := rand.Int64()
	var now time.Time
	var base int64
	l := &loader{}
	l.batch.Queue(sqlBegin)
	l.batch.Queue(sqlLock).QueryRow(func(row pgx.Row) error { return row.Scan(&base, &out.Epoch, &now) })
	out.Want(txns)
	load := func(v *eval.View) error {
		l.queue(v)
		err := l.run(ctx, b.conn)
		l = &loader{}
		return err
	}
	if err := load(out.View); err != nil {
		return nil, b.abort(err)
	}
	if err := out.Evaluate(txns, schema.Revision(base), now.UTC(), load); err != nil {
		return nil, b.abort(err)
	}
	if n := int64(out.Last) / partitionSize; n >= b.partitions.Load() {
		return nil, b.abort(errPartition(n))
	}
	w := &pgx.Batch{}
	if !out.Writes() {
		w.Queue("rollback")
	} else if err := queueWrites(w, out, tag); err != nil {
		return nil, b.abort(err)
	}
	if err := b.conn.SendBatch(ctx, w).Close(); err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) && !transient(pg) || !out.Writes() {
			return nil, b.abort(err)
		}
		b.disconnect()
		return nil, &ambiguous{out, tag, err}
	}
	return out, nil
}
