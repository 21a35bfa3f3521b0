package runner

import (
	"context"
	"slices"
	"sync"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/nodes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const (
	// maxLease bounds the leases of a runner: a longer one would hide its end.
	maxLease = time.Minute
	// maxLeases bounds how many leases of a runner one server remembers.
	maxLeases = 64
	// maxStatus bounds a status that a runner writes, in bytes.
	maxStatus = 64 << 10
	// maxRequestID bounds the request id of a transaction, in bytes.
	maxRequestID = 64
)

// scopedKinds are the kinds that a runner reads.
var scopedKinds = []string{core.KindNode, core.KindNodeLease, sandbox.KindSandbox, sandbox.KindSnapshot}

// Scope is the store as far as it concerns one runner. It reads the runner's node
// and that node's lease, sandboxes and snapshots; another entity of these kinds
// does not exist for it, and other kinds are refused. It writes their status, what
// the machine is, and the wish to pause an idle sandbox. What it sends of a
// specification beside that is not stored: the change is made to what the store
// has. Secrets of its sandboxes are sealed with the runner's own key.
//
// The address of a sandbox stays empty: the server must not connect to an address
// that a runner chooses.
type Scope struct {
	store  entity.Store
	node   id.Node
	reseal func(*sandbox.SandboxTemplate) error

	mu     sync.Mutex
	leases []schema.LeaseID // granted to the runner, the latest last
}

var _ entity.Store = (*Scope)(nil)

// NewScope returns the store of a runner. from opens secrets of the store, to seals them for
// the runner.
func NewScope(store entity.Store, node id.Node, from, to *schema.Sealer) *Scope {
	return &Scope{store: store, node: node, reseal: func(t *sandbox.SandboxTemplate) error {
		for name, sec := range t.Secrets {
			plain, err := from.Open(sec)
			if err != nil {
				return errs.Wrap(err, "secret %s", name)
			}
			if t.Secrets[name], err = to.Seal(plain); err != nil {
				return err
			}
		}
		return nil
	}}
}

func denied(format string, args ...any) error {
	return errs.New(errs.PermissionDenied, "a runner may not "+format, args...)
}

// nodeOf returns the node that an entity concerns, "" for none.
func nodeOf(o schema.Object) id.Node {
	switch o := o.(type) {
	case *core.Node:
		return o.GetID()
	case *core.NodeLease:
		return o.Spec.Node
	case *sandbox.Sandbox:
		return o.Spec.Node
	case *sandbox.Snapshot:
		return o.Spec.Node
	}
	return ""
}

// decode returns the object of a record of one of scopedKinds.
func decode(r *schema.Record) (schema.Object, error) {
	switch r.Kind {
	case core.KindNode:
		return decoded(entity.Decode[core.Node](r))
	case core.KindNodeLease:
		return decoded(entity.Decode[core.NodeLease](r))
	case sandbox.KindSandbox:
		return decoded(entity.Decode[sandbox.Sandbox](r))
	case sandbox.KindSnapshot:
		return decoded(entity.Decode[sandbox.Snapshot](r))
	}
	return nil, denied("use a %s", r.Kind)
}

func decoded[T schema.Object](o T, err error) (schema.Object, error) {
	if err != nil {
		return nil, err
	}
	return o, nil
}

// show returns a record as the runner sees it; false: it does not.
func (s *Scope) show(r *schema.Record) (schema.Record, bool, error) {
	o, err := decode(r)
	if err != nil || nodeOf(o) != s.node {
		return schema.Record{}, false, err
	}
	var t *sandbox.SandboxTemplate
	switch o := o.(type) {
	case *sandbox.Sandbox:
		t = &o.Spec.Template
	case *sandbox.Snapshot:
		t = &o.Spec.Template
	}
	if t == nil || len(t.Secrets) == 0 {
		return *r, true, nil
	}
	if err := s.reseal(t); err != nil {
		return schema.Record{}, false, err
	}
	sealed, err := o.EntityKind().Encode(o)
	if err != nil {
		return schema.Record{}, false, err
	}
	return *sealed, true, nil
}

func readable(kinds ...string) error {
	for _, k := range kinds {
		if !slices.Contains(scopedKinds, k) {
			return denied("read a %s", k)
		}
	}
	return nil
}

// Get implements entity.Store.
func (s *Scope) Get(ctx context.Context, kind string, eid schema.ID) (schema.Record, error) {
	if err := readable(kind); err != nil {
		return schema.Record{}, err
	}
	r, err := s.store.Get(ctx, kind, eid)
	if err != nil {
		return schema.Record{}, err
	}
	shown, ok, err := s.show(&r)
	if err == nil && !ok {
		err = errs.New(errs.NotFound, "there is no %s %s on this node", kind, eid)
	}
	return shown, err
}

// List implements entity.Store.
func (s *Scope) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	if err := readable(q.Kind); err != nil {
		return entity.Page{}, err
	}
	switch q.Kind {
	case sandbox.KindSandbox:
		q.Index = append(slices.Clone(q.Index), entity.Where(sandbox.SandboxAttrNode, s.node).Index...)
	case sandbox.KindSnapshot:
		q.Index = append(slices.Clone(q.Index), entity.Where(sandbox.SnapshotAttrNode, s.node).Index...)
	}
	page, err := s.store.List(ctx, q)
	if err != nil {
		return entity.Page{}, err
	}
	var mine []schema.Record
	for i := range page.Records {
		r, ok, err := s.show(&page.Records[i])
		if err != nil {
			return entity.Page{}, err
		}
		if ok {
			mine = append(mine, r)
		}
	}
	page.Records = mine
	return page, nil
}

// Watch implements entity.Store.
func (s *Scope) Watch(ctx context.Context, q entity.WatchQuery) (entity.Watch, error) {
	if len(q.Kinds) == 0 {
		return nil, denied("watch every kind")
	}
	if err := readable(q.Kinds...); err != nil {
		return nil, err
	}
	w, err := s.store.Watch(ctx, q)
	if err != nil {
		return nil, err
	}
	return &scopedWatch{w, s}, nil
}

type scopedWatch struct {
	entity.Watch
	s *Scope
}

// Next implements entity.Watch. It waits for an event that the runner sees, or a
// bookmark.
func (w *scopedWatch) Next(ctx context.Context) ([]entity.Event, error) {
	for {
		evs, err := w.Watch.Next(ctx)
		if err != nil {
			return nil, err
		}
		var mine []entity.Event
		for _, e := range evs {
			if e.Type != entity.EventBookmark {
				r, ok, err := w.s.show(&e.Record)
				if err != nil {
					return nil, err
				}
				if !ok {
					continue
				}
				e.Record = r
			}
			mine = append(mine, e)
		}
		if len(mine) > 0 {
			return mine, nil
		}
	}
}

// Txn implements entity.Store.
func (s *Scope) Txn(ctx context.Context, t entity.TxnRequest) (entity.TxnResult, error) {
	if len(t.RequestID) > maxRequestID {
		return entity.TxnResult{}, errs.New(errs.InvalidArgument, "a request id of a runner has at most %d bytes", maxRequestID)
	}
	if t.RequestID != "" { // so that it cannot name the transaction of another caller
		t.RequestID = string(s.node) + "/" + t.RequestID
	}
	ops := slices.Clone(t.Ops)
	for i := range ops {
		if err := s.limit(ctx, &ops[i]); err != nil {
			return entity.TxnResult{}, err
		}
	}
	t.Ops = ops
	res, err := s.store.Txn(ctx, t)
	if err != nil {
		return entity.TxnResult{}, err
	}
	for i := range res.Records {
		if res.Records[i].ID == "" {
			continue
		}
		r, _, err := s.show(&res.Records[i])
		if err != nil {
			return entity.TxnResult{}, err
		}
		res.Records[i] = r
	}
	return res, nil
}

// limit replaces op by what the runner may do of it.
func (s *Scope) limit(ctx context.Context, op *entity.Op) error {
	if err := readable(op.Record.Kind); err != nil {
		return err
	}
	if op.Type == entity.OpCreate {
		return s.limitCreate(op)
	}
	// What the store has says whose it is. That never changes: a node is set once.
	stored, err := s.store.Get(ctx, op.Record.Kind, op.Record.ID)
	if err != nil {
		return err
	}
	o, err := decode(&stored)
	if err != nil {
		return err
	}
	if nodeOf(o) != s.node {
		return errs.New(errs.NotFound, "there is no %s %s on this node", op.Record.Kind, op.Record.ID)
	}
	switch op.Type {
	case entity.OpCheck:
		return nil
	case entity.OpUpdateStatus:
		return s.limitStatus(op)
	case entity.OpUpdateSpec:
		return limitSpec(op, o)
	}
	return denied("%s a %s", "delete or add to", op.Record.Kind)
}

func (s *Scope) limitCreate(op *entity.Op) error {
	if op.Record.Kind != core.KindNodeLease {
		return denied("create a %s", op.Record.Kind)
	}
	l, err := entity.Decode[core.NodeLease](&op.Record)
	if err != nil {
		return err
	}
	if l.Spec.Node != s.node || l.Name != nodes.LeaseName(s.node) || !s.granted(l.Lease) {
		return denied("create the lease of another node")
	}
	return nil
}

func (s *Scope) limitStatus(op *entity.Op) error {
	if len(op.Record.Status) > maxStatus {
		return errs.New(errs.InvalidArgument, "a status of %d bytes is longer than %d", len(op.Record.Status), maxStatus)
	}
	if op.Record.Kind != sandbox.KindSandbox {
		return nil
	}
	sb, err := entity.Decode[sandbox.Sandbox](&op.Record)
	if err != nil {
		return err
	}
	if sb.Status.Address == "" {
		return nil
	}
	sb.Status.Address = ""
	return replace(op, sb)
}

// replace puts an object into an operation.
func replace(op *entity.Op, o schema.Object) error {
	rec, err := o.EntityKind().Encode(o)
	if err == nil {
		op.Record = *rec
	}
	return err
}

// limitSpec makes the permitted change to what the store has.
func limitSpec(op *entity.Op, stored schema.Object) error {
	asked, err := decode(&op.Record)
	if err != nil {
		return err
	}
	switch o := stored.(type) {
	case *core.Node:
		want := asked.(*core.Node).Spec
		o.Spec.Arch, o.Spec.Hostname, o.Spec.CPUMillis, o.Spec.MemoryBytes = want.Arch, want.Hostname, want.CPUMillis, want.MemoryBytes
	case *sandbox.Sandbox:
		want := asked.(*sandbox.Sandbox).Spec
		if d := want.Desired; d != o.Spec.Desired {
			if d != sandbox.DesiredStatePaused || o.Spec.Desired != sandbox.DesiredStateRunning {
				return denied("set a sandbox that shall be %s to %s", o.Spec.Desired, d)
			}
			o.Spec.Desired = d
		}
		if o.Spec.ResumeTTL != nil && o.Spec.Desired == sandbox.DesiredStatePaused && want.TTL == nil {
			o.Spec.TTL = nil // its time was over
		}
	default:
		return denied("change the specification of a %s", op.Record.Kind)
	}
	return replace(op, stored)
}

// Grant implements entity.Store.
func (s *Scope) Grant(ctx context.Context, ttl time.Duration) (entity.Lease, error) {
	if ttl > maxLease {
		return entity.Lease{}, errs.New(errs.InvalidArgument, "a lease of a runner lasts at most %s", maxLease)
	}
	l, err := s.store.Grant(ctx, ttl)
	if err != nil {
		return entity.Lease{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases = append(s.leases, l.ID)
	s.leases = s.leases[max(0, len(s.leases)-maxLeases):]
	return l, nil
}

func (s *Scope) granted(l schema.LeaseID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return l != "" && slices.Contains(s.leases, l)
}

// own fails unless a lease is the runner's: this server granted it, or its node
// hangs on it.
func (s *Scope) own(ctx context.Context, l schema.LeaseID) error {
	if s.granted(l) {
		return nil
	}
	have, err := nodes.LeaseOf(ctx, s.store, s.node)
	if err != nil && !errs.Is(err, errs.NotFound) {
		return err
	}
	if err == nil && l != "" && have.Lease == l {
		return nil
	}
	return errs.New(errs.NotFound, "there is no lease %s of this node", l)
}

// KeepAlive implements entity.Store.
func (s *Scope) KeepAlive(ctx context.Context, l schema.LeaseID) (entity.Lease, error) {
	if err := s.own(ctx, l); err != nil {
		return entity.Lease{}, err
	}
	return s.store.KeepAlive(ctx, l)
}

// Revoke implements entity.Store.
func (s *Scope) Revoke(ctx context.Context, l schema.LeaseID) error {
	if err := s.own(ctx, l); err != nil {
		return err
	}
	return s.store.Revoke(ctx, l)
}
