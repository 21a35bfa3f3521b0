package sandbox_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/api/ingress"
	api_sandbox "miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// previewUse says how much previews are used; it counts the questions.
type previewUse struct {
	use   ingress.Activity
	err   error
	asked int
}

func (u *previewUse) Activity(context.Context, schema.ID) (ingress.Activity, error) {
	u.asked++
	return u.use, u.err
}

// TestPreviewsAreUse: a sandbox whose agent sees no use is idle only if its
// previews are.
func TestPreviewsAreUse(t *testing.T) {
	limit := time.Second
	for name, last := range map[string]previewUse{
		"not used":   {use: ingress.Activity{Idle: time.Hour}},
		"no ingress": {err: fmt.Errorf("ask: %w", syscall.ECONNREFUSED)},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			sb := e.add(func(sb *Sandbox) { sb.Spec.IdleTimeout = &limit }, "sleep")
			e.eventually("it is ready", func() bool {
				got, _ := e.step(sb)
				return got.Status.Ready
			})
			for _, now := range []previewUse{
				{use: ingress.Activity{Requests: 1, Idle: time.Hour}},
				{use: ingress.Activity{Idle: 10 * time.Millisecond}},
				{err: errs.New(errs.Unavailable, "it does not answer")},
			} {
				e.rec.Previews = &now
				e.eventually("the ingress is asked", func() bool {
					got, again := e.step(sb)
					if got.Status.Phase != api_sandbox.SandboxPhaseRunning || again == 0 {
						t.Fatalf("%s, again after %s, with %+v", got.Status.Phase, again, now)
					}
					return now.asked > 1
				})
			}
			e.rec.Previews = &last
			e.eventually("it is idle", func() bool {
				got, _ := e.step(sb)
				return got.Status.Reason == api_sandbox.EndReasonIdle
			})
		})
	}
}
