package eval

import (
	"context"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// Bounds of a batch.
const (
	MaxBatch      = 256
	maxBatchOps   = 2000
	maxBatchBytes = 16 << 20
)

// queueSize is how many transactions may wait; further ones wait in Submit.
const queueSize = 1024

// QueueConfig of a Queue. All fields are required.
type QueueConfig struct {
	// RetryFor is how long a transaction waits for the writer.
	RetryFor time.Duration
	// CheckClosure refuses a deletion that cannot be completed before any part of
	// it is applied.
	CheckClosure func(context.Context, *Txn) error
	Closing      <-chan struct{} // closed when the store is closing
	Done         <-chan struct{} // closed when the writer has ended
}

// Queue holds transactions until the one writer of a store collects them.
type Queue struct {
	cfg   QueueConfig
	txns  chan *Txn
	carry *Txn // taken from txns, too large for the last batch; the writer's
}

// NewQueue returns an empty queue.
func NewQueue(cfg QueueConfig) *Queue { return &Queue{cfg: cfg, txns: make(chan *Txn, queueSize)} }

// Submit applies t and waits for its outcome. A t that changes more than one
// database transaction should is applied in several, with other writes in
// between.
func (q *Queue) Submit(ctx context.Context, t *Txn) (entity.TxnResult, error) {
	for begun := false; ; {
		res, err := q.submitOnce(ctx, t)
		switch {
		case err == errLarge:
			if err := q.cfg.CheckClosure(ctx, t); err != nil {
				return entity.TxnResult{}, err
			}
		case err == errPartial:
			begun = true
		case begun && t.EndLease != "" && errs.Is(err, errs.NotFound):
			return res, nil // another server ended the rest
		default:
			return res, err
		}
		t = &Txn{
			Req: t.Req, kinds: t.kinds, exts: t.exts, bytes: t.bytes, hash: t.hash, guarded: t.guarded,
			EndLease: t.EndLease, OnlyLapsed: t.OnlyLapsed, chunked: true,
		}
	}
}

// submitOnce queues t and waits until it, or a part of it, was applied.
func (q *Queue) submitOnce(ctx context.Context, t *Txn) (entity.TxnResult, error) {
	t.done = make(chan struct{})
	if ctx.Err() != nil {
		return entity.TxnResult{}, ContextError(ctx, "write")
	}
	late := time.NewTimer(q.cfg.RetryFor)
	defer late.Stop()
	select {
	case q.txns <- t:
	case <-ctx.Done():
		return entity.TxnResult{}, ContextError(ctx, "write")
	case <-late.C:
		return entity.TxnResult{}, ErrQueue(q.cfg.RetryFor)
	case <-q.cfg.Closing:
		return entity.TxnResult{}, ErrClosed()
	}
	for {
		select {
		case <-t.done:
			return t.res, t.err
		case <-ctx.Done():
			if t.state.CompareAndSwap(queued, abandoned) {
				return entity.TxnResult{}, ContextError(ctx, "write")
			}
			return entity.TxnResult{}, UnknownOutcome(ctx.Err())
		case <-late.C:
			// The writer ends the transactions that it has taken in time.
			if t.state.CompareAndSwap(queued, abandoned) {
				return entity.TxnResult{}, ErrQueue(q.cfg.RetryFor)
			}
		case <-q.cfg.Done:
			select {
			case <-t.done:
				return t.res, t.err
			default:
				return entity.TxnResult{}, ErrClosed()
			}
		}
	}
}

// Collect waits for a transaction and takes the rest of the queue: the
// transactions that arrived while the last batch was written. It returns nil
// when the store is closing. Only the writer calls it.
func (q *Queue) Collect(txns []*Txn) []*Txn {
	ops, size := 0, 0
	take := func(t *Txn) bool {
		if len(txns) > 0 && (ops+len(t.Req.Ops) > maxBatchOps || size+t.bytes > maxBatchBytes) {
			q.carry = t
			return false
		}
		if t.state.CompareAndSwap(queued, taken) {
			ops, size = ops+len(t.Req.Ops), size+t.bytes
			txns = append(txns, t)
		}
		return true
	}
	if t := q.carry; t != nil {
		q.carry = nil
		take(t)
	} else {
		select {
		case <-q.cfg.Closing:
			return nil
		case t := <-q.txns:
			take(t)
		}
	}
	for len(txns) < MaxBatch {
		select {
		case t := <-q.txns:
			if !take(t) {
				return txns
			}
		default:
			return txns
		}
	}
	return txns
}
