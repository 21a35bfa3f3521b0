// Package quotas bounds what a project uses at the same time: sandboxes with
// their CPU, memory and root disks, disks, executions and snapshots.
//
// [Store] is an entity.Store that refuses transactions which would pass a bound.
// Whatever makes, claims, forks or resumes a sandbox, or makes or grows a disk,
// writes through it, so a new way to do that needs no check of its own. The
// node's controllers, retention and repair by hand write to the store below it.
//
//	Txn    applies a transaction within the quota of its scope
//	Check  reports whether Txn would refuse operations
//	Show   a quota and what is used
//	Set    changes a quota
//
// # How a bound holds
//
// What is used is the sum over the entities of the scope, in the informers; no
// counter exists beside them. A transaction that uses more of a bounded resource
// also adds one to status.admissions of the project, on condition that no other
// transaction did since the sum was made. So of two that see the same sum one is
// in conflict and sums again, also with another server. What frees a resource
// needs no condition: informers that are behind see too much in use, never too
// little. A refusal is therefore checked once more at the present revision.
//
// A transaction of a project without a quota, or one that uses no more of what is
// bounded, is passed on as it is. A write under way while a quota is set may
// pass it, and other servers apply it a moment later.
//
// A use above a bound that was lowered stays; only what would use more is refused.
package quotas

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const (
	// behindTimeout bounds the wait for informers that are behind.
	behindTimeout = 10 * time.Second
	// refusalTimeout bounds the wait for the present revision before a refusal.
	refusalTimeout = time.Second
	// detailResource is the detail of an error that names the bound that was met.
	detailResource = "quota"
)

// Scope is whose use a quota bounds: that of all callers in a project.
type Scope struct {
	Project schema.ID
}

// Store applies transactions within quotas. It is safe for concurrent use.
type Store struct {
	entity.Store
	informers *informer.Set
	kinds     map[string]kind
	gates     sync.Map // Scope to *gate
}

// gate lets the transactions of a scope pass one after the other, so that those
// of one process do not conflict. Conflicts with other processes are repeated.
type gate struct {
	turn chan struct{}   // has room for one
	last schema.Revision // of the last transaction that was admitted; the holder of turn uses it
}

// New returns the store s within quotas. It adds indexes to informers, which
// follow s.
func New(s entity.Store, informers *informer.Set) *Store {
	informer.Of[core.Project](informers)
	return &Store{Store: s, informers: informers, kinds: map[string]kind{
		sandbox.KindSandbox:     kindOf[sandbox.Sandbox](informers),
		sandbox.KindSnapshot:    kindOf[sandbox.Snapshot](informers),
		disk.KindDisk:           kindOf[disk.Disk](informers),
		execution.KindExecution: kindOf[execution.Execution](informers),
	}}
}

// Refused reports whether an error is the refusal of a quota.
func Refused(err error) bool { return errs.Detail(err, detailResource) != "" }

// Txn implements entity.Store. ResourceExhausted, for which Refused is true, if
// the transaction would pass the quota.
func (s *Store) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	scope, limited, err := s.scope(ctx, req.Ops)
	if err != nil || !limited {
		return s.apply(ctx, req, err)
	}
	// What is refused, or uses no more, takes no turn.
	if p, err := s.admit(ctx, scope, req.Ops, 0); err != nil || p == nil {
		return s.apply(ctx, req, err)
	}
	g, leave, err := s.enter(ctx, scope)
	if err != nil {
		return entity.TxnResult{}, err
	}
	defer leave()
	for {
		p, err := s.admit(ctx, scope, req.Ops, g.last)
		if err != nil || p == nil {
			return s.apply(ctx, req, err)
		}
		p.Status.Admissions++
		admission, err := entity.UpdateStatusOp(p)
		if err != nil {
			return entity.TxnResult{}, err
		}
		ops := slices.Concat(req.Ops, []entity.Op{admission})
		res, err := s.Store.Txn(ctx, entity.TxnRequest{RequestID: req.RequestID, Ops: ops})
		if err == nil {
			g.last = res.Revision
			res.Records = res.Records[:len(req.Ops)]
			return res, nil
		}
		if !errs.Is(err, errs.Conflict) || errs.Detail(err, "id") != string(p.ID) {
			return entity.TxnResult{}, err
		}
		at, perr := strconv.ParseInt(errs.Detail(err, "revision"), 10, 64)
		if perr != nil {
			return entity.TxnResult{}, errs.New(errs.Internal, "a conflict without the revision of the entity: %w", err)
		}
		g.last = schema.Revision(at)
	}
}

// apply applies a transaction as it is, unless err says why not.
func (s *Store) apply(ctx context.Context, req entity.TxnRequest, err error) (entity.TxnResult, error) {
	if err != nil {
		return entity.TxnResult{}, err
	}
	return s.Store.Txn(ctx, req)
}

// Check returns the error with which Txn would refuse operations now, nil if it
// would not.
func (s *Store) Check(ctx context.Context, ops []entity.Op) error {
	scope, limited, err := s.scope(ctx, ops)
	if err != nil || !limited {
		return err
	}
	_, err = s.admit(ctx, scope, ops, 0)
	return err
}

// scope returns the scope of the operations that may use more than before. limited
// reports that there are any, and that their scope has a quota.
func (s *Store) scope(ctx context.Context, ops []entity.Op) (out Scope, limited bool, err error) {
	for i := range ops {
		if !s.bounded(&ops[i]) {
			continue
		}
		scope := Scope{Project: ops[i].Record.Project}
		if out != (Scope{}) && out != scope {
			return out, false, errs.New(errs.Internal, "a transaction makes entities of two projects, %s and %s", out.Project, scope.Project)
		}
		out = scope
	}
	if out == (Scope{}) {
		return out, false, nil
	}
	p, err := s.project(ctx, out)
	if errs.Is(err, errs.NotFound) {
		return out, false, nil // the store says what is wrong with the operations
	}
	if err != nil {
		return out, false, err
	}
	return out, p.Spec.Quota != nil, nil
}

// bounded reports whether an operation may use more than before.
func (s *Store) bounded(op *entity.Op) bool {
	if op.Type != entity.OpCreate && op.Type != entity.OpUpdateSpec {
		return false
	}
	_, ok := s.kinds[op.Record.Kind]
	return ok
}

// project returns the project of a scope from the informer, or from the store if
// it is new. It is shared.
func (s *Store) project(ctx context.Context, scope Scope) (*core.Project, error) {
	if p := informer.Of[core.Project](s.informers).Get(scope.Project); p != nil {
		return p, nil
	}
	return entity.Get[core.Project](ctx, s.Store, scope.Project)
}

// enter waits for the turn of the caller in a scope.
func (s *Store) enter(ctx context.Context, scope Scope) (*gate, func(), error) {
	v, ok := s.gates.Load(scope)
	if !ok {
		v, _ = s.gates.LoadOrStore(scope, &gate{turn: make(chan struct{}, 1)})
	}
	g := v.(*gate)
	select {
	case g.turn <- struct{}{}:
		return g, func() { <-g.turn }, nil
	case <-ctx.Done():
		return nil, nil, errs.New(errs.ClassOf(ctx.Err()), "wait for other changes under the quota: %w", ctx.Err())
	}
}

// admit checks operations against the quota, at revision after or later. It
// returns the project as it was before what is used was summed, nil if nothing
// that is bounded grows.
func (s *Store) admit(ctx context.Context, scope Scope, ops []entity.Op, after schema.Revision) (*core.Project, error) {
	for i := range ops {
		if s.bounded(&ops[i]) {
			after = max(after, ops[i].Record.Revision) // the informers must know what the caller has read
		}
	}
	for caughtUp := false; ; caughtUp = true {
		if err := s.await(ctx, after); err != nil {
			return nil, err
		}
		p, err := s.project(ctx, scope)
		if err != nil {
			return nil, err
		}
		// Listings of two kinds may be of different revisions for a moment.
		if err := s.await(ctx, p.Revision); err != nil {
			return nil, err
		}
		grows, err := s.grows(p, scope, ops)
		if err == nil && !grows {
			return nil, nil
		}
		if err == nil {
			return schema.Copy(p), nil
		}
		if caughtUp || !Refused(err) {
			return nil, err
		}
		s.catchUp(ctx)
	}
}

// await waits until the informers have seen a revision.
func (s *Store) await(ctx context.Context, rev schema.Revision) error {
	wctx, cancel := context.WithTimeout(ctx, behindTimeout)
	defer cancel()
	_, err := s.informers.WaitRevision(wctx, rev)
	if err != nil && ctx.Err() == nil {
		return errs.New(errs.Unavailable, "what is used under the quota is not known: %w", err)
	}
	return err
}

// catchUp waits until the informers have seen the present revision, or some time.
func (s *Store) catchUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, refusalTimeout)
	defer cancel()
	page, err := s.Store.List(ctx, entity.Query{Kind: core.KindProject, Limit: 1})
	if err == nil {
		_, _ = s.informers.WaitRevision(ctx, page.Token.Revision)
	}
}
