package retention

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/domain/executions"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const (
	// objectsEvery is how often objects of executions are collected; objectsPause
	// is the shortest time between two collections, when there are too many bytes.
	objectsEvery = time.Hour
	objectsPause = 10 * time.Second
	// maxObjects bounds the objects that one collection deletes.
	maxObjects = 100_000
)

// Objects are the objects of executions. It deletes those of executions that the
// history no longer has, and the oldest ones while there are too many bytes.
type Objects struct {
	executions.Objects
	Store    entity.Reader
	Keep     time.Duration // how long the history keeps executions; objects stay for two days longer
	MaxBytes int64         // of all objects; those of executions in the store may exceed it
	Logger   *slog.Logger

	used atomic.Int64  // bytes at the last collection, and of those created since
	full chan struct{} // signals that there are too many
}

// NewObjects completes objects whose exported fields are set.
func NewObjects(o *Objects) *Objects {
	o.full = make(chan struct{}, 1)
	return o
}

// Create implements executions.Objects.
func (r *Objects) Create(ctx context.Context, key string, data []byte) error {
	err := r.Objects.Create(ctx, key, data)
	if err == nil && r.used.Add(int64(len(data))) > r.MaxBytes {
		select {
		case r.full <- struct{}{}:
		default:
		}
	}
	return err
}

// Run collects every hour, and when there are too many bytes, until ctx ends.
func (r *Objects) Run(ctx context.Context) error {
	every := time.NewTicker(objectsEvery)
	defer every.Stop()
	for {
		if err := r.Collect(ctx, time.Now()); err != nil && ctx.Err() == nil {
			r.Logger.Warn("collect objects of executions", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(objectsPause):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		case <-r.full:
		}
	}
}

// Collect deletes the objects that are older than Keep, and the oldest ones until
// at most MaxBytes remain. It deletes none of an execution that is in the store, and
// nothing that is no object of an execution.
func (r *Objects) Collect(ctx context.Context, now time.Time) error {
	var total int64
	for o, err := range r.List(ctx) {
		if err != nil {
			return err
		}
		total += o.Size
	}
	old, err := r.old(ctx, now, total)
	if err != nil {
		return err
	}
	for _, o := range old {
		if err := r.Delete(ctx, o.Key); err != nil {
			return err
		}
		total -= o.Size
	}
	r.used.Store(total)
	return nil
}

// old returns the objects to delete of those that have total bytes.
func (r *Objects) old(ctx context.Context, now time.Time, total int64) (old []executions.Object, err error) {
	// Partitions of the history are dropped by the day; an object is older than the
	// end of its execution.
	before := now.Add(-r.Keep - 48*time.Hour)
	var last id.Execution
	var lives bool
	for o, err := range r.List(ctx) {
		if err != nil {
			return nil, err
		}
		submitted, eid, ok := executions.Owner(o.Key)
		if !ok {
			continue
		}
		if total <= r.MaxBytes && submitted.After(before) || len(old) == maxObjects {
			break
		}
		if eid != last {
			_, err := r.Store.Get(ctx, execution.KindExecution, schema.ID(eid))
			if err != nil && !errs.Is(err, errs.NotFound) {
				return nil, err
			}
			last, lives = eid, err == nil
		}
		if !lives {
			old = append(old, o)
			total -= o.Size
		}
	}
	return old, nil
}
