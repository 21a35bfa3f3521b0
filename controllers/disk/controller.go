package disk

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/pkg/schema"
)

// workers bounds how many disks are reconciled at a time: a store that does not
// answer keeps one for minutes.
const workers = 8

// sweepEvery is how often the directory of mounts is read for disks without an
// entity.
const sweepEvery = 10 * time.Minute

// Controller describes the reconciler to the controller runtime.
func (r *Reconciler) Controller() kit.Controller {
	return kit.Controller{
		Name: "disk", Kind: disk.DiskKind, Reconcile: r.Reconcile, Workers: workers,
		Watches: []kit.Source{
			kit.Map(func(s *disk.DiskSnapshot) []id.Disk { return kit.Key(s.Spec.Disk) }),
			kit.Map(func(m *disk.DiskMount) []id.Disk { return kit.Key(m.Spec.Disk) }),
			kit.Func(r.sweep),
		},
		Access: kit.Access{
			Reads:   []*schema.Kind{disk.DiskCopyKind, sandbox.SandboxKind, core.NodeKind, core.NodeLeaseKind},
			Creates: []*schema.Kind{disk.DiskMountKind},
			Deletes: []*schema.Kind{disk.DiskKind, disk.DiskSnapshotKind, disk.DiskMountKind},
			Owns: append(kit.Fields(disk.DiskKind, "status"), append(kit.Fields(disk.DiskSnapshotKind, "status"),
				kit.Fields(disk.DiskMountKind, "spec", "status")...)...),
		},
	}
}

// sweep adds every disk that is mounted, until ctx ends.
func (r *Reconciler) sweep(ctx context.Context, add func(schema.ID)) {
	for {
		entries, err := os.ReadDir(r.MountDir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			r.Logger.Warn("cannot list the mounts of disks", "error", err)
		}
		for _, e := range entries {
			add(schema.ID(e.Name()))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(sweepEvery):
		}
	}
}

// locks are one lock per disk.
type locks struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// lock returns when the caller alone has the lock of a disk, with a function that releases it.
func (l *locks) lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		l.mu.Lock()
		if l.held == nil {
			l.held = map[string]chan struct{}{}
		}
		held, taken := l.held[key]
		if !taken {
			mine := make(chan struct{})
			l.held[key] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				delete(l.held, key)
				close(mine)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
