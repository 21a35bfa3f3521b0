package records

import (
	"context"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Bounds of what a batch appends.
const (
	maxAppend      = 256
	maxAppendBytes = 4 << 20
)

// queueSize is how many appends may wait; further ones wait in Append.
const queueSize = 1024

// Appending is one call of Append in the queue.
type Appending struct {
	Records []entity.HistoryRecord
	ctx     context.Context // one that ended before its turn is left out
	done    chan error      // has room for the outcome
}

// Finish answers the call.
func (a *Appending) Finish(err error) { a.done <- err }

// QueueConfig of a Queue. All fields are required.
type QueueConfig struct {
	RetryFor time.Duration   // how long an append waits for the writer
	Closing  <-chan struct{} // closed when the store is closing
	Done     <-chan struct{} // closed when the writer has ended
}

// Queue holds appends until the one writer of a history collects them. What is
// queued while a batch is being written is the next one, so many appends share
// one commit.
type Queue struct {
	cfg   QueueConfig
	calls chan *Appending
	carry *Appending // taken from calls, too large for the last batch; the writer's
}

// NewQueue returns an empty queue.
func NewQueue(cfg QueueConfig) *Queue {
	return &Queue{cfg: cfg, calls: make(chan *Appending, queueSize)}
}

// Append is the method of entity.History.
func (q *Queue) Append(ctx context.Context, records []entity.HistoryRecord) error {
	if len(records) > maxAppend {
		return errs.New(errs.InvalidArgument, "%d history records at once; at most %d are allowed", len(records), maxAppend)
	}
	for i := range records {
		if err := records[i].Validate(); err != nil {
			return err
		}
	}
	if len(records) == 0 {
		return nil
	}
	a := &Appending{Records: records, ctx: ctx, done: make(chan error, 1)}
	late := time.NewTimer(q.cfg.RetryFor)
	defer late.Stop()
	select {
	case q.calls <- a:
	case <-ctx.Done():
		return eval.ContextError(ctx, "append to the history")
	case <-late.C:
		return eval.ErrQueue(q.cfg.RetryFor)
	case <-q.cfg.Closing:
		return eval.ErrClosed()
	}
	select {
	case err := <-a.done:
		return err
	case <-ctx.Done():
		return eval.UnknownOutcome(ctx.Err())
	case <-q.cfg.Done:
		select {
		case err := <-a.done:
			return err
		default:
			return eval.ErrClosed()
		}
	}
}

// Collect waits for a call and takes the rest of the queue, as far as a batch has
// room. It returns nil when the store is closing. Only the writer calls it.
func (q *Queue) Collect() []*Appending {
	batch := []*Appending{}
	size, bytes := 0, 0
	take := func(a *Appending) bool {
		n := 0
		for i := range a.Records {
			n += len(a.Records[i].Detail) + 200
		}
		if len(batch) > 0 && (size+len(a.Records) > maxAppend || bytes+n > maxAppendBytes) {
			q.carry = a
			return false
		}
		if a.ctx.Err() != nil {
			a.Finish(eval.ContextError(a.ctx, "append to the history"))
			return true
		}
		batch, size, bytes = append(batch, a), size+len(a.Records), bytes+n
		return true
	}
	if a := q.carry; a != nil {
		q.carry = nil
		take(a)
	} else {
		select {
		case <-q.cfg.Closing:
			return nil
		case a := <-q.calls:
			take(a)
		}
	}
	for more := true; more; {
		select {
		case a := <-q.calls:
			more = take(a)
		default:
			more = false
		}
	}
	return batch
}

// Columns are the columns of a batch: stream, id, project, actor, kind and id of
// the subject, action, outcome, request and detail. Each record gets its id here.
func Columns(batch []*Appending) [10][]string {
	var cols [10][]string
	for _, a := range batch {
		for i := range a.Records {
			r := &a.Records[i]
			for c, v := range [...]string{
				string(r.Stream), string(schema.NewID("rec")), r.Project, r.Actor, r.SubjectKind, r.SubjectID, r.Action, r.Outcome, r.RequestID,
				string(r.Detail),
			} {
				cols[c] = append(cols[c], v)
			}
		}
	}
	return cols
}
