// Package pool reconciles sandbox pools: it keeps the wanted number of
// sandboxes of a pool alive, replaces those that ended after a growing delay,
// stops what is too many, and forgets old ended ones.
//
// In: sandbox_pool.spec, and the sandboxes that reference the pool. Out:
// sandbox entities (created, told to stop, deleted) and sandbox_pool.status.
// A sandbox is created in one transaction with the pool's counter, so a crash
// in the middle neither loses nor doubles one.
package pool

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
)

// Bounds of the delay before a failed sandbox is replaced, and how long one
// must have been ready for the failures before it to be forgotten.
const (
	minBackoff  = 500 * time.Millisecond
	maxBackoff  = time.Minute
	stableAfter = 30 * time.Second
	// keepEnded is how many ended sandboxes of a pool stay, for their logs.
	keepEnded = 3
	// maxCreate bounds the sandboxes that one transaction makes.
	maxCreate = 100
)

// Reconciler makes pools have the sandboxes they want.
type Reconciler struct {
	Store entity.Store
	Log   *slog.Logger
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Controller describes it to the controller runtime.
func (r *Reconciler) Controller() kit.Controller {
	c := kit.Controller{
		Name: "pool", Kind: sandbox.SandboxPoolKind, Reconcile: r.Reconcile, Workers: 4,
		Watches: []kit.Source{kit.Map(func(sb *sandbox.Sandbox) []id.SandboxPool { return kit.Key(sb.Spec.Pool) })},
		Access: kit.Access{
			Creates: []*schema.Kind{sandbox.SandboxKind},
			Deletes: []*schema.Kind{sandbox.SandboxKind},
			Owns:    append(kit.Fields(sandbox.SandboxPoolKind, "status"), kit.Fields(sandbox.SandboxKind, "labels."+labelCounted)...),
		},
	}
	for _, f := range kit.Fields(sandbox.SandboxKind, "spec.desired", "spec.stop_reason") {
		c.Shares = append(c.Shares, kit.Share{
			Field: f, Owner: "api", Why: "to stop one of its own that is too many",
			When: func(before, after schema.Object) bool {
				return before.(*sandbox.Sandbox).Spec.Pool != "" && after.(*sandbox.Sandbox).Spec.Desired == sandbox.DesiredStateStopped
			},
		})
	}
	return c
}

// Reconcile brings one pool closer to its spec and returns when to look again
// (0: when something changes).
func (r *Reconciler) Reconcile(ctx context.Context, pid schema.ID) (time.Duration, error) {
	now := time.Now
	if r.Now != nil {
		now = r.Now
	}
	p, err := entity.Get[sandbox.SandboxPool](ctx, r.Store, pid)
	if errs.Is(err, errs.NotFound) {
		return 0, nil // its sandboxes went with it (cascade)
	}
	if err != nil {
		return 0, err
	}
	all, err := Sandboxes(ctx, r.Store, p.GetID())
	if err != nil {
		return 0, err
	}
	st := Survey(all)
	over := forgettable(st.Ended)
	before := p.Status
	counted, again := account(p, st, now())
	ops, err := markCounted(counted)
	if err != nil {
		return 0, err
	}
	stop, err := stopExcess(st.Live, len(st.Live)-int(p.Spec.Replicas))
	if err != nil {
		return 0, err
	}
	ops = append(ops, stop...)
	missing := int(p.Spec.Replicas) - len(st.Live)
	if missing > 0 && p.Status.NextStart != nil && now().Before(*p.Status.NextStart) {
		missing, again = 0, earlier(again, p.Status.NextStart.Sub(now()))
	}
	if missing > maxCreate {
		missing, again = maxCreate, time.Millisecond // the others in transactions of their own
	}
	if missing > 0 {
		more, err := create(p, missing)
		if err != nil {
			return 0, err
		}
		ops = append(ops, more...)
	}
	if !reflect.DeepEqual(before, p.Status) {
		op, err := entity.UpdateStatusOp(p)
		if err != nil {
			return 0, err
		}
		ops = append(ops, op)
	}
	if len(ops) > 0 {
		fault.Point("pool", "write", fault.Before)
		if _, err := r.Store.Txn(ctx, entity.TxnRequest{Ops: ops}); err != nil {
			return 0, moved(err)
		}
		fault.Point("pool", "write", fault.After)
	}
	return again, r.forget(ctx, over)
}

// moved makes a conflict of NotFound: of what was read, something was deleted
// before it was written. The next look sees what is left.
func moved(err error) error {
	if errs.Is(err, errs.NotFound) {
		return errs.New(errs.Conflict, "%w", err)
	}
	return err
}

// State is the sandboxes of a pool by what became of them.
type State struct {
	Live  []*sandbox.Sandbox // wanted and not ended, oldest first
	Going []*sandbox.Sandbox // told to stop, not ended yet
	Ended []*sandbox.Sandbox // stopped or failed, oldest end first
	Ready int                // of Live
}

// Sandboxes lists the sandboxes of a pool.
func Sandboxes(ctx context.Context, s entity.Reader, p id.SandboxPool) ([]*sandbox.Sandbox, error) {
	list, _, err := entity.List[sandbox.Sandbox](ctx, s, entity.Query{Index: []entity.IndexMatch{{
		Attr: sandbox.SandboxAttrPool, Op: entity.IndexEq, Value: schema.EncodeIndexString(string(p)),
	}}})
	return list, err
}

// Survey sorts sandboxes.
func Survey(all []*sandbox.Sandbox) State {
	var st State
	for _, sb := range all {
		switch {
		case sb.Status.Phase.Ended():
			st.Ended = append(st.Ended, sb)
		case sb.Spec.Desired == sandbox.DesiredStateStopped:
			st.Going = append(st.Going, sb)
		default:
			st.Live = append(st.Live, sb)
			if sb.Status.Ready {
				st.Ready++
			}
		}
	}
	slices.SortFunc(st.Live, byAge)
	slices.SortFunc(st.Ended, func(a, b *sandbox.Sandbox) int {
		return cmp.Or(cmp.Compare(a.StatusRevision, b.StatusRevision), cmp.Compare(a.ID, b.ID))
	})
	return st
}

// byAge puts the oldest first; those of one transaction are in the order of their ids.
func byAge(a, b *sandbox.Sandbox) int {
	return cmp.Or(cmp.Compare(a.CreateRevision, b.CreateRevision), cmp.Compare(a.ID, b.ID))
}

// Unasked reports whether an ended sandbox ended without being told to.
func Unasked(sb *sandbox.Sandbox) bool {
	switch sb.Status.Reason {
	case sandbox.EndReasonUser, sandbox.EndReasonTTL, sandbox.EndReasonIdle:
		return false
	}
	return true
}

// account sets the counters and the back-off of p from what is there. It
// returns the ended sandboxes that the failure count now includes and did not
// before, and when the count may next change.
func account(p *sandbox.SandboxPool, st State, now time.Time) (counted []*sandbox.Sandbox, again time.Duration) {
	p.Status.Total = int64(len(st.Live) + len(st.Going))
	p.Status.Ready = int64(st.Ready)
	stable := false
	for _, sb := range st.Live {
		if !sb.Status.Ready || sb.Status.ReadyAt == nil {
			continue
		}
		if age := now.Sub(*sb.Status.ReadyAt); age >= stableAfter {
			stable = true
		} else {
			again = earlier(again, stableAfter-age)
		}
	}
	for _, sb := range st.Ended {
		if !Unasked(sb) || sb.Labels[labelCounted] != "" {
			continue
		}
		counted = append(counted, sb)
		p.Status.Failures++
		if sb.Status.ReadyAt != nil && sb.Status.EndedAt != nil && sb.Status.EndedAt.Sub(*sb.Status.ReadyAt) >= stableAfter {
			p.Status.Failures = 1
		}
	}
	switch {
	case len(counted) > 0:
		last := counted[len(counted)-1]
		next := now.Add(min(maxBackoff, minBackoff<<min(p.Status.Failures-1, 10)))
		p.Status.NextStart = &next
		p.Status.Message = fmt.Sprintf("sandbox %s ended: %s", last.ID, describe(last))
	case stable && p.Status.Failures > 0:
		p.Status.Failures, p.Status.NextStart, p.Status.Message = 0, nil, ""
	}
	return counted, again
}

// markCounted labels sandboxes so that their failure is counted only once.
func markCounted(counted []*sandbox.Sandbox) ([]entity.Op, error) {
	var ops []entity.Op
	for _, sb := range counted {
		sb.Labels = maps.Clone(sb.Labels)
		if sb.Labels == nil {
			sb.Labels = map[string]string{}
		}
		sb.Labels[labelCounted] = "true"
		op, err := entity.UpdateSpecOp(sb)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	return ops, nil
}

// labelCounted marks an ended sandbox whose failure is in the pool's count.
const labelCounted = "runtime/counted"

func describe(sb *sandbox.Sandbox) string {
	if sb.Status.Message != "" {
		return sb.Status.Message
	}
	if sb.Status.ExitCode != nil {
		return fmt.Sprintf("%s, exit code %d", sb.Status.Reason, *sb.Status.ExitCode)
	}
	return string(sb.Status.Reason)
}

// forgettable returns the oldest ended sandboxes whose end is in the counts
// already, but for the newest, which stay for their logs.
func forgettable(ended []*sandbox.Sandbox) []*sandbox.Sandbox {
	var out []*sandbox.Sandbox
	for i := 0; i < len(ended)-keepEnded; i++ {
		if !Unasked(ended[i]) || ended[i].Labels[labelCounted] != "" {
			out = append(out, ended[i])
		}
	}
	return out
}

func (r *Reconciler) forget(ctx context.Context, over []*sandbox.Sandbox) error {
	for _, sb := range over {
		if err := entity.Delete(ctx, r.Store, sb); err != nil && !errs.Is(err, errs.NotFound) && !errs.Is(err, errs.Conflict) {
			return err
		}
	}
	return nil
}

// stopExcess tells n sandboxes to stop: those not ready first, then the newest.
func stopExcess(live []*sandbox.Sandbox, n int) ([]entity.Op, error) {
	if n <= 0 {
		return nil, nil
	}
	order := slices.Clone(live)
	slices.SortFunc(order, func(a, b *sandbox.Sandbox) int {
		if a.Status.Ready != b.Status.Ready {
			if b.Status.Ready {
				return -1
			}
			return 1
		}
		return byAge(b, a)
	})
	var ops []entity.Op
	for _, sb := range order[:n] {
		sb.Spec.Desired = sandbox.DesiredStateStopped
		sb.Spec.StopReason = sandbox.EndReasonUser
		op, err := entity.UpdateSpecOp(sb)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	return ops, nil
}

// create makes the operations for n new sandboxes and counts them in p.
func create(p *sandbox.SandboxPool, n int) ([]entity.Op, error) {
	var ops []entity.Op
	for range n {
		p.Status.Created++
		p.Status.Total++
		sb := sandbox.NewSandbox()
		sb.Project, sb.Labels = p.Project, maps.Clone(p.Labels)
		sb.Name = ChildName(cmp.Or(p.Name, string(p.ID)), strconv.FormatInt(p.Status.Created, 10), schema.MaxName)
		sb.Spec.Pool, sb.Spec.App, sb.Spec.AppVersion, sb.Spec.Service = p.GetID(), p.Spec.App, p.Spec.AppVersion, p.Spec.Service
		sb.Spec.Template = p.Spec.Template
		op, err := entity.CreateOp(sb)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	return ops, nil
}

// ChildName is base-suffix, where base is shortened, keeping it apart from
// others that begin alike, if the whole would be longer than limit.
func ChildName(base, suffix string, limit int) string {
	name := base + "-" + suffix
	if len(name) <= limit {
		return name
	}
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(name)))[:8]
	if room := limit - len(sum) - len(suffix) - 2; room > 0 {
		return strings.TrimRight(base[:min(room, len(base))], "-") + "-" + sum + "-" + suffix
	}
	return strings.TrimRight(name[:limit-len(sum)-1], "-") + "-" + sum
}

func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}
