package execution

import (
	"context"
	"sync"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// storeRetry is the time before a failed look at the queue is repeated.
const storeRetry = time.Second

// dispatch begins attempts until ctx ends, and waits for their ends. What may
// make room, or an execution due, signals wake.
func (r *Reconciler) dispatch(ctx context.Context, add func(schema.ID)) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		var again <-chan time.Time
		if err := r.fill(ctx, &running, add); err != nil {
			if ctx.Err() == nil {
				r.Logger.Warn("cannot begin executions", "error", err)
			}
			again = time.After(storeRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-again:
		}
	}
}

// fill begins attempts while there is room for them.
func (r *Reconciler) fill(ctx context.Context, running *sync.WaitGroup, add func(schema.ID)) error {
	for ctx.Err() == nil {
		most, err := r.parallel(ctx)
		if err != nil {
			return err
		}
		r.mu.Lock()
		room := most - len(r.attempts)
		r.mu.Unlock()
		if room <= 0 {
			return nil // the end of an attempt wakes the dispatcher
		}
		page, err := r.Store.List(ctx, entity.Query{
			Kind:  execution.KindExecution,
			Order: &entity.Order{Index: execution.ExecutionIndexQueue.Name, Equal: [][]byte{schema.EncodeIndexString(string(execution.PhaseQueued))}},
			Limit: room,
		})
		if err != nil {
			return err
		}
		begun := 0
		for i := range page.Records {
			e, err := entity.Decode[execution.Execution](&page.Records[i])
			if err != nil {
				return err
			}
			if e.Spec.Cancel {
				continue // its reconcile ends it
			}
			a, err := r.begin(ctx, e)
			switch {
			case errs.Is(err, errs.Conflict), errs.Is(err, errs.NotFound):
				continue // another server has it, or it is cancelled or deleted
			case err != nil:
				return err
			}
			begun++
			running.Go(func() {
				a.perform()
				r.forget(a)
				add(a.e.ID) // in case that its end could not be recorded
				r.signal()
			})
		}
		if begun == 0 || len(page.Records) < room {
			return nil
		}
	}
	return nil
}

// parallel returns how many attempts this server makes at a time.
func (r *Reconciler) parallel(ctx context.Context) (int, error) {
	if r.Parallel > 0 {
		return r.Parallel, nil
	}
	n, err := entity.Get[core.Node](ctx, r.Store, r.Node)
	if err != nil {
		return 0, err
	}
	return int(max(1, n.Spec.MemoryBytes/2/(sandbox.DefaultMemoryBytes+sandbox.OverheadBytes))), nil
}

// begin makes an attempt this process's.
func (r *Reconciler) begin(ctx context.Context, e *execution.Execution) (*attempt, error) {
	a := newAttempt(ctx, r, e)
	a.live, a.done = r.Executions.Begin(e.GetID(), e.Status.Attempt+1)
	r.mu.Lock()
	r.attempts[e.ID] = a // before the write: the reconcile that it causes finds it
	r.mu.Unlock()
	now := time.Now()
	st := &e.Status
	st.Phase, st.Attempt, st.Node, st.Server, st.BegunAt = execution.PhaseRunning, st.Attempt+1, r.Node, r.server, &now
	st.Sandbox, st.StartedAt, st.Message = "", nil, ""
	st.Metrics = &execution.Metrics{Queue: max(0, now.Sub(st.NotBefore))}
	if err := r.write(ctx, "begin", e); err != nil {
		r.forget(a)
		return nil, err
	}
	return a, nil
}

// forget ends what begin began, when the end of the attempt is recorded.
func (r *Reconciler) forget(a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a.cancel(nil)
	a.done()
	delete(r.attempts, a.e.ID)
}
