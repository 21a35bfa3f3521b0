package deployment_test

import (
	"context"
	"sync"
	"syscall"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/ingress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// drainer simulates the ingress.
type drainer struct {
	mu       sync.Mutex
	away     bool
	down     bool // no ingress runs
	inflight map[schema.ID]int64
	asked    int
}

func (d *drainer) set(v id.AppVersion, n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inflight[schema.ID(v)] = n
}

func (d *drainer) Synced(context.Context, schema.Revision) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	if d.down {
		return errs.New(errs.Unavailable, "ask ingress: %w", syscall.ECONNREFUSED)
	}
	if d.away {
		return errs.New(errs.Unavailable, "ingress is away")
	}
	return nil
}

func (d *drainer) Inflight(_ context.Context, v schema.ID) (ingress.Inflight, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return ingress.Inflight{Version: v, Total: d.inflight[v]}, nil
}
