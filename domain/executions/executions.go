// Package executions has the operations on executions: submitted code that the
// server runs to its end without its caller.
//
//	Submit, SubmitBatch  a new execution, or several
//	Get, List            executions, also those that moved to the history
//	Wait                 until one has ended
//	Cancel               its end
//	Result, Logs         what an attempt left
//
// The execution controller makes the attempts, and moves an execution to the
// history when it has ended. What is large is in [Objects]: the request, and the
// output of each attempt.
package executions

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/domain/policies"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/templates"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Service is the operations on the executions of one store. It is safe for
// concurrent use.
type Service struct {
	Store     entity.Store
	History   entity.History
	Informers *informer.Set // informers of Store
	Objects   Objects
	Templates *templates.Service
	Sealer    *schema.Sealer // seals secret variables
	MaxQueued int            // most executions in the store; 0: unbounded
	MaxBytes  int64          // most bytes of their requests; 0: unbounded
	// Quota returns the error with which Store would refuse operations; nil: there
	// are no quotas.
	Quota    func(ctx context.Context, ops []entity.Op) error
	Policies *policies.Store // nil: there are no policies

	inputBytes atomic.Int64 // of the requests of the executions in the store
	live       sync.Map     // id.Execution to *Live, of attempts under way in this process
}

const (
	indexProject = "project of execution"
	indexNode    = "node of execution"
)

// New completes a service whose exported fields are set: it makes the indexes
// and handlers of its informers.
func New(s *Service) *Service {
	i := informer.Of[execution.Execution](s.Informers)
	i.AddIndex(indexProject, func(e *execution.Execution) []string { return []string{string(e.Project)} })
	i.AddIndex(indexNode, func(e *execution.Execution) []string {
		if e.Status.Node == "" {
			return nil
		}
		return []string{string(e.Status.Node)}
	})
	i.Handle(func(c informer.Change[*execution.Execution]) {
		if c.Old != nil {
			s.inputBytes.Add(-c.Old.Spec.InputBytes)
		}
		if c.New != nil {
			s.inputBytes.Add(c.New.Spec.InputBytes)
		}
	})
	return s
}

// Get returns an execution of a project, also one that moved to the history.
// NotFound if the project has none with that id.
func (s *Service) Get(ctx context.Context, project string, eid id.Execution) (*execution.Execution, error) {
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return nil, err
	}
	return s.get(ctx, pid, eid)
}

func (s *Service) get(ctx context.Context, project schema.ID, eid id.Execution) (*execution.Execution, error) {
	e, err := entity.Get[execution.Execution](ctx, s.Store, eid)
	if errs.Is(err, errs.NotFound) {
		// An execution is in the history before it leaves the store.
		e, err = Ended(ctx, s.History, eid)
	}
	if err == nil && e.Project != project || errs.Is(err, errs.NotFound) {
		return nil, errs.New(errs.NotFound, "there is no execution %s", eid).WithHint("`r execution list` lists them")
	}
	return e, err
}

// Wait returns an execution when it has ended. It ends with ctx; the execution
// goes on.
func (s *Service) Wait(ctx context.Context, project string, eid id.Execution) (*execution.Execution, error) {
	e, err := s.Get(ctx, project, eid)
	if err != nil || e.Status.Phase == execution.PhaseEnded {
		return e, err
	}
	ended, err := informer.Of[execution.Execution](s.Informers).Await(ctx, e.ID, func(e *execution.Execution) (bool, error) {
		return e.Status.Phase == execution.PhaseEnded, nil
	})
	if errs.Is(err, errs.NotFound) { // it moved meanwhile
		return s.get(ctx, e.Project, eid)
	}
	return ended, err
}

// Cancel has an execution end: one that waits or is queued ends at once, the
// process of one that runs is killed. One that has ended stays as it is.
func (s *Service) Cancel(ctx context.Context, project string, eid id.Execution) (*execution.Execution, error) {
	e, err := s.Get(ctx, project, eid)
	if err != nil || e.Status.Phase == execution.PhaseEnded {
		return e, err
	}
	e, err = entity.ModifySpec(ctx, s.Store, eid, func(e *execution.Execution) error { e.Spec.Cancel = true; return nil })
	if errs.Is(err, errs.NotFound) {
		return s.Get(ctx, project, eid)
	}
	return e, err
}

// Result returns an execution and what an attempt of it left: that with a number,
// or the last one if attempt is 0. FailedPrecondition if it has not ended;
// NotFound if there was none with the number, or its output is no longer kept.
func (s *Service) Result(ctx context.Context, project string, eid id.Execution, attempt int64) (*execution.Execution, *Output, error) {
	e, err := s.Get(ctx, project, eid)
	if err != nil {
		return nil, nil, err
	}
	if e.Status.Phase != execution.PhaseEnded && (attempt == 0 || attempt == e.Status.Attempt && e.Status.Phase == execution.PhaseRunning) {
		return nil, nil, errs.New(errs.FailedPrecondition, "execution %s is %s", eid, e.Status.Phase).WithHint("`r execution wait %s` waits for its end", eid)
	}
	a := attemptOf(e, attempt)
	if a == nil && attempt > 0 {
		return nil, nil, errs.New(errs.NotFound, "execution %s had no attempt %d", eid, attempt).WithHint("`r execution show %s` shows its attempts", eid)
	}
	out, err := s.output(ctx, a)
	return e, out, err
}

// attemptOf returns the ended attempt with a number, or the last one for 0; nil
// if there is none.
func attemptOf(e *execution.Execution, number int64) *execution.Attempt {
	for i := len(e.Status.Attempts) - 1; i >= 0; i-- {
		if a := &e.Status.Attempts[i]; number == 0 || a.Number == number {
			return a
		}
	}
	return nil
}

// output returns what an attempt left, which is empty for none.
func (s *Service) output(ctx context.Context, a *execution.Attempt) (*Output, error) {
	if a == nil || a.Result == "" {
		return &Output{}, nil
	}
	out, err := readOutput(ctx, s.Objects, a.Result)
	if errs.Is(err, errs.NotFound) {
		return nil, errs.New(errs.NotFound, "the output is no longer kept").WithHint("executions.store_bytes and history.executions say how much is kept, and how long")
	}
	return out, err
}

// OnNode returns the executions whose attempts are made by a node, from the
// informer.
func (s *Service) OnNode(node id.Node) []id.Execution {
	var out []id.Execution
	for _, e := range informer.Of[execution.Execution](s.Informers).ByIndex(indexNode, string(node)) {
		out = append(out, e.GetID())
	}
	return out
}

// ListQuery selects executions of a project.
type ListQuery struct {
	Batch  string          // "": all
	Phase  execution.Phase // "": all
	Limit  int             // of one page, 1 to 1000
	Cursor string          // of the previous page
}

// Prefixes of the cursors of a list: what follows is the creation revision of
// the last execution of the store, or the cursor of the history.
const (
	cursorStore   = "s"
	cursorHistory = "h"
)

// List returns a page of executions and the cursor of the next one, "" after the
// last: first those that are in the store, the newest first, then those in the
// history. One that moves meanwhile may be listed twice, never left out.
func (s *Service) List(ctx context.Context, project string, q ListQuery) ([]*execution.Execution, string, error) {
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return nil, "", err
	}
	if q.Batch != "" {
		list, err := s.batch(ctx, pid, q.Batch)
		return slices.DeleteFunc(list, func(e *execution.Execution) bool { return q.Phase != "" && e.Status.Phase != q.Phase }), "", err
	}
	var out []*execution.Execution
	var from string // of the history
	kind, at, _ := strings.Cut(q.Cursor, ":")
	switch kind {
	case "", cursorStore:
		before := int64(0)
		if at != "" {
			if before, err = strconv.ParseInt(at, 10, 64); err != nil {
				return nil, "", errs.New(errs.InvalidArgument, "this cursor is not of a list of executions")
			}
		}
		out = s.stored(pid, q.Phase, before)
		if len(out) > q.Limit {
			out = out[:q.Limit]
			return out, cursorStore + ":" + strconv.FormatInt(int64(out[q.Limit-1].CreateRevision), 10), nil
		}
	case cursorHistory:
		from = at
	default:
		return nil, "", errs.New(errs.InvalidArgument, "this cursor is not of a list of executions")
	}
	if q.Phase != "" && q.Phase != execution.PhaseEnded || len(out) == q.Limit {
		if len(out) == q.Limit {
			return out, cursorHistory + ":", nil
		}
		return out, "", nil
	}
	page, err := s.History.Records(ctx, entity.HistoryQuery{
		Stream: entity.StreamExecution, Projects: []string{cmp.Or(project, projects.Default)}, SubjectKind: execution.KindExecution,
		Limit: q.Limit - len(out), Cursor: from,
	})
	if err != nil {
		return nil, "", err
	}
	for i := range page.Records {
		e, err := fromRecord(&page.Records[i])
		if err != nil {
			return nil, "", err
		}
		if !slices.ContainsFunc(out, func(o *execution.Execution) bool { return o.ID == e.ID }) {
			out = append(out, e)
		}
	}
	if page.Cursor == "" {
		return out, "", nil
	}
	return out, cursorHistory + ":" + page.Cursor, nil
}

// stored returns the executions of a project that are in the store, the newest
// first; with before, those that were created before that revision.
func (s *Service) stored(project schema.ID, phase execution.Phase, before int64) []*execution.Execution {
	list := slices.DeleteFunc(slices.Clone(informer.Of[execution.Execution](s.Informers).ByIndex(indexProject, string(project))), func(e *execution.Execution) bool {
		return phase != "" && e.Status.Phase != phase || before > 0 && int64(e.CreateRevision) >= before
	})
	slices.SortFunc(list, func(a, b *execution.Execution) int {
		return cmp.Or(cmp.Compare(b.CreateRevision, a.CreateRevision), cmp.Compare(b.ID, a.ID))
	})
	return list
}

// batch returns the executions of a batch, in its order. NotFound if there is no
// such batch.
func (s *Service) batch(ctx context.Context, project schema.ID, batch string) ([]*execution.Execution, error) {
	var out []*execution.Execution
	for i := 0; i == 0 || i < int(out[0].Spec.BatchSize); i++ {
		e, err := s.get(ctx, project, memberID(batch, i))
		if i == 0 && errs.Is(err, errs.NotFound) {
			return nil, errs.New(errs.NotFound, "there is no batch %s", batch)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}
