package sandboxes

import (
	"cmp"
	"context"
	"maps"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// snapshotTimeout bounds the taking of a snapshot.
const snapshotTimeout = 5 * time.Minute

// Pause asks that a sandbox is saved and its processes end; see Wait. It
// returns at once. If the node refuses, the sandbox goes on and is wanted running again. FailedPrecondition if the sandbox has ended or waits in a
// warm pool.
func (s *Service) Pause(ctx context.Context, sid id.Sandbox) (*sandbox.Sandbox, error) {
	return s.want(ctx, sid, sandbox.DesiredStatePaused)
}

// Resume asks that a paused sandbox continues; see Wait. It returns at once.
// FailedPrecondition if the sandbox has ended.
func (s *Service) Resume(ctx context.Context, sid id.Sandbox) (*sandbox.Sandbox, error) {
	return s.want(ctx, sid, sandbox.DesiredStateRunning)
}

func (s *Service) want(ctx context.Context, sid id.Sandbox, state sandbox.DesiredState) (*sandbox.Sandbox, error) {
	return entity.ModifySpec(ctx, s.Store, sid, func(sb *sandbox.Sandbox) error {
		switch {
		case sb.Status.Phase.Ended() || sb.Spec.Desired == sandbox.DesiredStateStopped:
			return errEnded(sb)
		case sb.Spec.WarmPool != "" || sb.Spec.Pool != "":
			return errs.New(errs.FailedPrecondition, "sandbox %s is of a pool, which decides whether it runs", sid)
		}
		if state == sandbox.DesiredStateRunning && sb.Spec.ResumeTTL != nil && (sb.Spec.Desired == sandbox.DesiredStatePaused || Expired(sb, time.Now())) {
			if setEnd(sb, *sb.Spec.ResumeTTL, time.Now()); sb.Spec.ClaimedAt == nil && sb.Status.Saved != "" {
				sb.Spec.TTL = sb.Spec.ResumeTTL // it will be started again, and its time counts from there
			}
		}
		sb.Spec.Desired = state
		return nil
	})
}

// PutBack wants a sandbox whose pause was refused running again. One that was to be
// paused at the end of its time has time again, as after a resume.
func PutBack(sb *sandbox.Sandbox, now time.Time) {
	if sb.Spec.Desired != sandbox.DesiredStatePaused {
		return
	}
	if sb.Spec.Desired = sandbox.DesiredStateRunning; sb.Spec.ResumeTTL != nil && sb.Spec.TTL == nil {
		setEnd(sb, *sb.Spec.ResumeTTL, now)
	}
}

// errRefused is the error of a pause that the sandbox's node refused.
func errRefused(sb *sandbox.Sandbox) error {
	return errs.New(errs.FailedPrecondition, "sandbox %s cannot be paused, it goes on: %s", sb.ID, sb.Status.PauseRefused)
}

// Begun returns the time from which the time to live of a sandbox counts: that
// of its claim, or of its start. It has not come if the sandbox did not start.
func Begun(sb *sandbox.Sandbox) (begun time.Time, ok bool) {
	switch {
	case sb.Spec.ClaimedAt != nil:
		return *sb.Spec.ClaimedAt, true
	case sb.Status.StartedAt != nil:
		return *sb.Status.StartedAt, true
	}
	return time.Time{}, false
}

// Expired reports whether the time to live of a sandbox has run out.
func Expired(sb *sandbox.Sandbox, now time.Time) bool {
	begun, ok := Begun(sb)
	return ok && sb.Spec.TTL != nil && sb.Status.StartedAt != nil && now.Sub(begun) >= *sb.Spec.TTL
}

// setEnd sets the end of a sandbox to ttl after now.
func setEnd(sb *sandbox.Sandbox, ttl time.Duration, now time.Time) {
	if begun, ok := Begun(sb); ok {
		ttl += now.Sub(begun)
	}
	sb.Spec.TTL = &ttl
}

// Extend sets the end of a sandbox to ttl after now; 0: it has none.
// FailedPrecondition if the sandbox has ended.
func (s *Service) Extend(ctx context.Context, sid id.Sandbox, ttl time.Duration) (*sandbox.Sandbox, error) {
	return entity.ModifySpec(ctx, s.Store, sid, func(sb *sandbox.Sandbox) error {
		if sb.Status.Phase.Ended() {
			return errEnded(sb)
		}
		if sb.Spec.TTL = nil; ttl > 0 {
			setEnd(sb, ttl, time.Now())
		}
		return nil
	})
}

// SetIdle changes the time without use after which action happens to a sandbox;
// 0: never. Without action it stays as it is. FailedPrecondition if the sandbox
// has ended or is of a pool.
func (s *Service) SetIdle(ctx context.Context, sid id.Sandbox, timeout time.Duration, action sandbox.IdleAction) (*sandbox.Sandbox, error) {
	return entity.ModifySpec(ctx, s.Store, sid, func(sb *sandbox.Sandbox) error {
		switch {
		case sb.Status.Phase.Ended() || sb.Spec.Desired == sandbox.DesiredStateStopped:
			return errEnded(sb)
		case sb.Spec.WarmPool != "" || sb.Spec.Pool != "":
			return errs.New(errs.FailedPrecondition, "sandbox %s is of a pool, which decides whether it runs", sid)
		}
		sb.Spec.IdleTimeout = nil
		if timeout > 0 {
			sb.Spec.IdleTimeout = &timeout
		}
		sb.Spec.OnIdle = cmp.Or(action, sb.Spec.OnIdle)
		return nil
	})
}

// Wake resumes a sandbox if it is paused, and returns at once. FailedPrecondition
// if it has ended.
func (s *Service) Wake(ctx context.Context, sid id.Sandbox) error {
	sb, err := entity.Get[sandbox.Sandbox](ctx, s.Store, sid)
	if err != nil {
		return err
	}
	if sb.Status.Phase.Ended() {
		return errEnded(sb)
	}
	return s.awake(ctx, sb)
}

// awake resumes a sandbox that is paused, so that it can be used.
func (s *Service) awake(ctx context.Context, sb *sandbox.Sandbox) error {
	if sb.Spec.Desired != sandbox.DesiredStatePaused {
		return nil
	}
	_, err := s.Resume(ctx, sb.GetID())
	return err
}

// Snapshot takes a snapshot of a running sandbox, which goes on, and returns it
// when it is complete. store is the URL of an object store for a copy of it; ""
// for none. Errors: FailedPrecondition if the sandbox does not run, or cannot be
// saved or copied.
func (s *Service) Snapshot(ctx context.Context, sid id.Sandbox, name string, labels map[string]string, store string) (*sandbox.Snapshot, error) {
	return s.snapshot(ctx, sid, func(o *sandbox.Snapshot) { o.Name, o.Labels, o.Spec.Store = name, labels, store })
}

func (s *Service) snapshot(ctx context.Context, sid id.Sandbox, set func(*sandbox.Snapshot)) (*sandbox.Snapshot, error) {
	sb, err := entity.Get[sandbox.Sandbox](ctx, s.Store, sid)
	if err != nil {
		return nil, err
	}
	if sb.Status.Phase.Ended() {
		return nil, errEnded(sb)
	}
	for _, v := range sb.Spec.Template.Volumes {
		if !v.ReadOnly {
			return nil, errs.New(errs.FailedPrecondition, "sandbox %s writes to a disk at %s, which its forks could not", sid, v.Path).
				WithHint("pause it instead, or mount the disk read-only")
		}
	}
	if sb.Status.Phase != sandbox.SandboxPhaseRunning {
		return nil, errs.New(errs.FailedPrecondition, "sandbox %s does not run: it is %s", sid, sb.Status.Phase).
			WithHint("a snapshot is taken of a running sandbox")
	}
	o := sandbox.NewSnapshot()
	o.Project, o.Spec.Sandbox, o.Spec.Node, o.Spec.Parent = sb.Project, sid, sb.Spec.Node, sb.Spec.Restore
	o.Spec.Template, o.Spec.TemplateVersion = sb.Spec.Template, sb.Spec.TemplateVersion
	o.Spec.Template.Secrets = nil // what was configured is in its memory; it is not given again
	if set(o); o.Spec.Store != "" {
		if n, err := entity.Get[core.Node](ctx, s.Store, o.Spec.Node); err != nil {
			return nil, err
		} else if n.Spec.Runner {
			return nil, errs.New(errs.FailedPrecondition, "sandbox %s is on a runner, which copies no snapshots to stores", sid).
				WithHint("take the snapshot without a copy; it stays on the runner")
		}
	}
	if err := entity.Create(ctx, s.Store, o); err != nil {
		return nil, err
	}
	wctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	o, err = informer.Of[sandbox.Snapshot](s.Informers).Await(wctx, o.ID, func(o *sandbox.Snapshot) (bool, error) {
		return o.Status.Phase != sandbox.SnapshotPhasePending, nil
	})
	if err != nil {
		return nil, err
	}
	if o.Status.Phase == sandbox.SnapshotPhaseFailed {
		_ = s.DeleteSnapshot(ctx, o.GetID()) // it is only a record of the failure
		return nil, errs.New(errs.FailedPrecondition, "the snapshot could not be taken: %s", o.Status.Message)
	}
	return o, nil
}

// DeleteSnapshot deletes a snapshot; its node deletes its copy. Sandboxes that were
// made from it go on.
func (s *Service) DeleteSnapshot(ctx context.Context, sid id.Snapshot) error {
	o, err := entity.Get[sandbox.Snapshot](ctx, s.Store, sid)
	if err != nil {
		return err
	}
	if o.Spec.Store == "" {
		return entity.Remove[sandbox.Snapshot](ctx, s.Store, sid)
	}
	_, err = entity.ModifySpec(ctx, s.Store, sid, func(o *sandbox.Snapshot) error {
		o.Spec.Deleted = true
		return nil
	})
	return err
}

// ForkRequest says what new sandboxes go on from: a running sandbox, which goes
// on too, or a snapshot.
type ForkRequest struct {
	Sandbox  id.Sandbox
	Snapshot id.Snapshot
	Count    int // 0: 1
	Labels   map[string]string
	Env      map[string]string // of processes that are started from then on
	TTL      time.Duration     // of each; 0: never
	// At the end of its TTL each is paused, and has ResumeTTL from each resume on; 0: it ends.
	ResumeTTL time.Duration
	// IdleTimeout is the time without use after which OnIdle happens to each; 0: never.
	IdleTimeout time.Duration
	OnIdle      sandbox.IdleAction // empty: it ends
	APIKey      id.APIKey          // the API key with which they are asked for, and whose bounds hold; "": none
	Note        func(text string)
}

// Fork makes sandboxes and returns them when all of them run. If one does not
// start, those that do are deleted again. Errors: those of Snapshot;
// ResourceExhausted if the node had no room.
func (s *Service) Fork(ctx context.Context, req ForkRequest) (_ []*sandbox.Sandbox, err error) {
	if err := sandbox.CheckEnv("env", req.Env); err != nil {
		return nil, errs.New(errs.InvalidArgument, "%w", err)
	}
	if (req.Sandbox == "") == (req.Snapshot == "") {
		return nil, errs.New(errs.InvalidArgument, "either a sandbox or a snapshot says what to fork")
	}
	var from *sandbox.Snapshot
	if req.Snapshot != "" {
		if from, err = entity.Get[sandbox.Snapshot](ctx, s.Store, req.Snapshot); err != nil {
			return nil, err
		}
		if from.Spec.Deleted {
			return nil, errs.New(errs.NotFound, "snapshot %s is being deleted", from.ID)
		}
		if from.Status.Phase != sandbox.SnapshotPhaseReady {
			return nil, errs.New(errs.FailedPrecondition, "snapshot %s is %s", from.ID, from.Status.Phase)
		}
	} else {
		// The snapshot goes when the sandboxes run, or with this server.
		lease, err := s.Store.Grant(ctx, onceLease)
		if err != nil {
			return nil, err
		}
		defer s.keepLease(ctx, lease.ID)()
		if from, err = s.snapshot(ctx, req.Sandbox, func(o *sandbox.Snapshot) { o.Lease = lease.ID }); err != nil {
			return nil, err
		}
	}
	only, err := s.nodeOfSnapshot(ctx, from)
	if err != nil {
		return nil, err
	}
	forks := make([]*sandbox.Sandbox, cmp.Or(req.Count, 1))
	var ops []entity.Op
	for i := range forks {
		forks[i] = forkOf(from, &req)
		if err := s.Policies.Default(ctx, forks[i]); err != nil {
			return nil, err
		}
		forks[i].Spec.OnlyNode = only
		op, err := entity.CreateOp(forks[i])
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	if _, err := s.Store.Txn(ctx, entity.TxnRequest{Ops: ops}); err != nil {
		return nil, err
	}
	g, gctx := errgroup.WithContext(ctx)
	for i, sb := range forks {
		g.Go(func() error {
			if err := s.awaitStart(gctx, sb.GetID(), defaultStart, req.Note); err != nil {
				return err
			}
			var err error
			forks[i], err = entity.Get[sandbox.Sandbox](gctx, s.Store, sb.ID)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		for _, op := range ops {
			if derr := s.Delete(dctx, id.Sandbox(op.Record.ID)); derr != nil && !errs.Is(derr, errs.NotFound) {
				s.Logger.Warn("delete a fork", "sandbox", string(op.Record.ID), "error", derr)
			}
		}
		return nil, err
	}
	return forks, nil
}

// nodeOfSnapshot returns the node on which sandboxes are made of a snapshot: the one
// that keeps it, or any, "", if that is down or takes no sandboxes and there is a
// copy.
func (s *Service) nodeOfSnapshot(ctx context.Context, from *sandbox.Snapshot) (id.Node, error) {
	if from.Status.CopySum == "" {
		return from.Spec.Node, nil
	}
	n, err := entity.Get[core.Node](ctx, s.Store, from.Spec.Node)
	if errs.Is(err, errs.NotFound) || err == nil && (n.Status.Phase != core.NodePhaseReady || n.Spec.Cordoned) {
		return "", nil
	}
	return from.Spec.Node, err
}

// forkOf returns a sandbox that is made from a snapshot.
func forkOf(from *sandbox.Snapshot, req *ForkRequest) *sandbox.Sandbox {
	sb := sandbox.NewSandbox()
	sb.Project, sb.Labels = from.Project, maps.Clone(req.Labels)
	sb.Spec.Restore, sb.Spec.APIKey = string(from.ID), string(req.APIKey)
	sb.Spec.Template, sb.Spec.TemplateVersion = schema.Copy(from.Spec.Template), from.Spec.TemplateVersion
	sb.Spec.Template.Hostname = ""
	if len(sb.Spec.Template.Start) > 0 {
		sb.Spec.Template.Start, sb.Spec.Template.Probe = nil, nil // what it started is in the memory
	}
	if len(req.Env) > 0 {
		sb.Spec.Template.Env = merge(sb.Spec.Template.Env, req.Env)
	}
	if req.TTL > 0 {
		sb.Spec.TTL = &req.TTL
	}
	if req.ResumeTTL > 0 {
		sb.Spec.ResumeTTL = &req.ResumeTTL
	}
	if req.IdleTimeout > 0 {
		sb.Spec.IdleTimeout = &req.IdleTimeout
	}
	sb.Spec.OnIdle = cmp.Or(req.OnIdle, sb.Spec.OnIdle)
	return sb
}
