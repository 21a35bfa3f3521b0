package pool

import (
	"context"
	"fmt"
	"maps"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// backoff is the part of a pool's status that delays the replacement of
// sandboxes that keep failing.
type backoff struct {
	failures *int64
	next     **time.Time
	message  *string
}

// account counts the failures of a pool. It returns the ended sandboxes that it
// added to the count (oldest first, at most maxAtOnce), and after how long the
// count may next change.
func (b backoff) account(st sandboxes.Members, now time.Time) (counted []*sandbox.Sandbox, again time.Duration) {
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
		if len(counted) == maxAtOnce {
			break
		}
		if !sandboxes.EndedUnexpectedly(sb) || sb.Labels[sandboxes.LabelCounted] != "" {
			continue
		}
		counted = append(counted, sb)
		*b.failures++
		if sb.Status.ReadyAt != nil && sb.Status.EndedAt != nil && sb.Status.EndedAt.Sub(*sb.Status.ReadyAt) >= stableAfter {
			*b.failures = 1
		}
	}
	switch {
	case len(counted) > 0:
		last := counted[len(counted)-1]
		next := now.Add(min(maxBackoff, minBackoff<<min(*b.failures-1, 10)))
		*b.next = &next
		*b.message = fmt.Sprintf("sandbox %s ended: %s", last.ID, describe(last))
	case stable && *b.failures > 0:
		*b.failures, *b.next, *b.message = 0, nil, ""
	}
	return counted, again
}

// countedShare declares the label that markCounted sets.
func countedShare() kit.Share {
	return kit.Share{
		Field: kit.Field{Kind: sandbox.SandboxKind, Path: "labels." + sandboxes.LabelCounted}, Owner: "api",
		Why: "to count the failure of an ended one of its own once",
		When: func(before, _ schema.Object) bool {
			sb := before.(*sandbox.Sandbox)
			return sb.Status.Phase.Ended() && (sb.Spec.Pool != "" || sb.Spec.WarmPool != "")
		},
	}
}

// markCounted labels sandboxes so that their failure is counted only once.
func markCounted(counted []*sandbox.Sandbox) ([]entity.Op, error) {
	var ops []entity.Op
	for _, sb := range counted {
		sb.Labels = maps.Clone(sb.Labels)
		if sb.Labels == nil {
			sb.Labels = map[string]string{}
		}
		sb.Labels[sandboxes.LabelCounted] = "true"
		op, err := entity.UpdateSpecOp(sb)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	return ops, nil
}

func describe(sb *sandbox.Sandbox) string {
	if sb.Status.Message != "" {
		return sb.Status.Message
	}
	if sb.Status.ExitCode != nil {
		return fmt.Sprintf("%s, exit code %d", sb.Status.Reason, *sb.Status.ExitCode)
	}
	return string(sb.Status.Reason)
}

// surplusEnded returns the ended sandboxes that can be deleted: their end is
// counted, and they are not among the newest, which stay for their logs.
func surplusEnded(ended []*sandbox.Sandbox) []*sandbox.Sandbox {
	var out []*sandbox.Sandbox
	for i := 0; i < len(ended)-keepEnded; i++ {
		if !sandboxes.EndedUnexpectedly(ended[i]) || ended[i].Labels[sandboxes.LabelCounted] != "" {
			out = append(out, ended[i])
		}
	}
	return out
}

// deleteEnded deletes ended sandboxes. A sandbox that changed meanwhile waits
// for the next reconciliation.
func deleteEnded(ctx context.Context, s entity.Store, ended []*sandbox.Sandbox) error {
	for _, sb := range ended {
		if err := entity.Delete(ctx, s, sb); err != nil && !errs.Is(err, errs.NotFound) && !errs.Is(err, errs.Conflict) {
			return err
		}
	}
	return nil
}
