// Package quotas bounds what a project uses at the same time: sandboxes with
// their CPU, memory and root disks, disks, executions and snapshots. An API key may
// have bounds of its own, for the sandboxes and executions that were asked for with it.
//
// [Store] is an entity.Store that refuses transactions which would pass a bound.
// Whatever makes, claims, forks or resumes a sandbox, or makes or grows a disk,
// writes through it, so a new way to do that needs no check of its own. The
// node's controllers, retention and repair by hand write to the store below it.
//
//	Txn    applies a transaction within the quota of its scope
//	Check  reports whether Txn would refuse operations
//	Show   a quota and what is used; ShowKey, that of an API key
//	Set    changes a quota
//
// # How a bound holds
//
// What is used is the sum over the entities of the scope, in the informers; no
// counter exists beside them. A transaction that uses more of a bounded resource
// also adds one to status.admissions of the project, whether the bound is that of the
// project or of a key, on condition that no other transaction did since the sum was made. So of two that see the same sum one is
// in conflict and sums again, also with another server. What frees a resource
// needs no condition: informers that are behind see too much in use, never too
// little. A refusal is therefore checked once more at the present revision.
//
// A transaction without a quota, or one that uses no more of what is bounded, is
// passed on as it is. A write under way while a quota is set may
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
	"miren.dev/runtime/api/id"
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

// Scope is whose use a quota bounds: that of all callers in a project, or of those with
// one of its API keys.
type Scope struct {
	Project schema.ID
	Key     id.APIKey // "": all callers
}

// has reports whether an entity belongs to the scope.
func (c Scope) has(o schema.Object) bool {
	return o.GetMeta().Project == c.Project && (c.Key == "" || keyOf(o) == c.Key)
}

// keyOf returns the API key with which an entity was asked for, "" if there is none.
func keyOf(o schema.Object) id.APIKey {
	switch o := o.(type) {
	case *sandbox.Sandbox:
		return id.APIKey(o.Spec.APIKey)
	case *execution.Execution:
		return id.APIKey(o.Spec.APIKey)
	}
	return ""
}

// Store applies transactions within quotas. It is safe for concurrent use.
type Store struct {
	entity.Store
	informers *informer.Set
	kinds     map[string]kind
	gates     sync.Map // id of a project to *gate
}

// gate lets the transactions of a project pass one after the other, so that those
// of one process do not conflict. Conflicts with other processes are repeated.
type gate struct {
	turn chan struct{}   // has room for one
	last schema.Revision // of the last transaction that was admitted; the holder of turn uses it
}

// New returns the store s within quotas. It adds indexes to informers, which
// follow s.
func New(s entity.Store, informers *informer.Set) *Store {
	informer.Of[core.Project](informers)
	informer.Of[core.APIKey](informers)
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
	project, limited, err := s.limited(ctx, req.Ops)
	if err != nil || !limited {
		return s.apply(ctx, req, err)
	}
	// What is refused, or uses no more, takes no turn.
	if p, err := s.admit(ctx, project, req.Ops, 0); err != nil || p == nil {
		return s.apply(ctx, req, err)
	}
	g, leave, err := s.enter(ctx, project)
	if err != nil {
		return entity.TxnResult{}, err
	}
	defer leave()
	for {
		p, err := s.admit(ctx, project, req.Ops, g.last)
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
	project, limited, err := s.limited(ctx, ops)
	if err != nil || !limited {
		return err
	}
	_, err = s.admit(ctx, project, ops, 0)
	return err
}

// limited returns the project of the operations that may use more than before, and
// reports whether there are any that a quota bounds.
func (s *Store) limited(ctx context.Context, ops []entity.Op) (project schema.ID, limited bool, err error) {
	for i := range ops {
		if !s.bounded(&ops[i]) {
			continue
		}
		of := ops[i].Record.Project
		if project != "" && project != of {
			return project, false, errs.New(errs.Internal, "a transaction makes entities of two projects, %s and %s", project, of)
		}
		project = of
	}
	if project == "" {
		return "", false, nil
	}
	p, err := s.project(ctx, project)
	if errs.Is(err, errs.NotFound) {
		return project, false, nil // the store says what is wrong with the operations
	}
	if err != nil {
		return project, false, err
	}
	bounds, err := s.bounds(ctx, p, ops)
	return project, len(bounds) > 0, err
}

// bound is a quota of a scope.
type bound struct {
	scope Scope
	quota *core.Quota
	owner string // for messages
	hint  string // where the quota is shown, and who can change it
}

// bounds returns the quotas under which operations are: that of the project, and those
// of the API keys with which entities were asked for.
func (s *Store) bounds(ctx context.Context, p *core.Project, ops []entity.Op) ([]bound, error) {
	var out []bound
	if p.Spec.Quota != nil {
		out = append(out, bound{
			Scope{Project: p.ID}, p.Spec.Quota, "project " + p.Name,
			"`r quota show` shows what is used, and an administrator raises the quota with `r quota set`",
		})
	}
	seen := map[id.APIKey]bool{"": true}
	for i := range ops {
		if !s.bounded(&ops[i]) {
			continue
		}
		o, err := s.kinds[ops[i].Record.Kind].decode(&ops[i].Record)
		if err != nil {
			return nil, err
		}
		kid := keyOf(o)
		if seen[kid] {
			continue
		}
		seen[kid] = true
		k, err := s.key(ctx, kid)
		if errs.Is(err, errs.NotFound) {
			continue // it was deleted, and its bounds with it
		}
		if err != nil {
			return nil, err
		}
		if q := quotaOf(k); q != nil {
			out = append(out, bound{
				Scope{p.ID, kid}, q, "API key " + k.Name,
				"`r key show " + k.Name + "` shows what is used, and an administrator makes keys with other bounds",
			})
		}
	}
	return out, nil
}

// quotaOf returns the bounds of an API key; nil if it has none.
func quotaOf(k *core.APIKey) *core.Quota {
	return orNil(core.Quota{Sandboxes: k.Spec.MaxSandboxes, Executions: k.Spec.MaxExecutions})
}

// key returns an API key from the informer, or from the store if it is new. It is shared.
func (s *Store) key(ctx context.Context, kid id.APIKey) (*core.APIKey, error) {
	if k := informer.Of[core.APIKey](s.informers).Get(schema.ID(kid)); k != nil {
		return k, nil
	}
	return entity.Get[core.APIKey](ctx, s.Store, kid)
}

// bounded reports whether an operation may use more than before.
func (s *Store) bounded(op *entity.Op) bool {
	if op.Type != entity.OpCreate && op.Type != entity.OpUpdateSpec {
		return false
	}
	_, ok := s.kinds[op.Record.Kind]
	return ok
}

// project returns a project from the informer, or from the store if it is new. It is
// shared.
func (s *Store) project(ctx context.Context, pid schema.ID) (*core.Project, error) {
	if p := informer.Of[core.Project](s.informers).Get(pid); p != nil {
		return p, nil
	}
	return entity.Get[core.Project](ctx, s.Store, pid)
}

// enter waits for the turn of the caller in a project.
func (s *Store) enter(ctx context.Context, project schema.ID) (*gate, func(), error) {
	v, ok := s.gates.Load(project)
	if !ok {
		v, _ = s.gates.LoadOrStore(project, &gate{turn: make(chan struct{}, 1)})
	}
	g := v.(*gate)
	select {
	case g.turn <- struct{}{}:
		return g, func() { <-g.turn }, nil
	case <-ctx.Done():
		return nil, nil, errs.New(errs.ClassOf(ctx.Err()), "wait for other changes under the quota: %w", ctx.Err())
	}
}

// admit checks operations against the quotas, at revision after or later. It
// returns the project as it was before what is used was summed, nil if nothing
// that is bounded grows.
func (s *Store) admit(ctx context.Context, project schema.ID, ops []entity.Op, after schema.Revision) (*core.Project, error) {
	for i := range ops {
		if s.bounded(&ops[i]) {
			after = max(after, ops[i].Record.Revision) // the informers must know what the caller has read
		}
	}
	for caughtUp := false; ; caughtUp = true {
		if err := s.await(ctx, after); err != nil {
			return nil, err
		}
		p, err := s.project(ctx, project)
		if err != nil {
			return nil, err
		}
		// Listings of two kinds may be of different revisions for a moment.
		if err := s.await(ctx, p.Revision); err != nil {
			return nil, err
		}
		grows, err := s.grows(ctx, p, ops)
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
