// Package build reconciles builds: it makes an image of an uploaded source.
//
//	pending -> running -> succeeded | failed | canceled
//
// In: build.spec, the source store. Out: an image in the instance's image
// store, build.status, the build's log. A build runs in a goroutine of the
// Reconciler, so that a change of the entity (cancel) is seen meanwhile; one
// whose server died is found in phase running with nobody on it and done
// again, which the builder's cache makes cheap.
package build

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/components/baseimage"
	"miren.dev/runtime/components/buildkit"
	"miren.dev/runtime/components/buildlog"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Builder builds images; *buildkit.Daemon is one.
type Builder interface {
	Build(ctx context.Context, req buildkit.Request, progress func(buildkit.Event)) (*buildkit.Result, error)
}

// Bases makes base images; *baseimage.Store is one.
type Bases interface {
	Ensure(ctx context.Context, ref baseimage.Ref, progress func(string)) (*baseimage.Image, error)
}

// Sources gives access to uploaded sources.
type Sources interface {
	// Materialize writes the files of a source below dir, which it makes.
	// NotFound if the source, or a part of it, is not there.
	Materialize(ctx context.Context, digest, dir string) error
}

// maxAttempts bounds how often a build is tried when the builder goes away.
const maxAttempts = 3

// Reconciler runs builds.
type Reconciler struct {
	Store    entity.Store
	Builder  Builder
	Bases    Bases
	Sources  Sources
	Logs     *buildlog.Logs
	TempDir  string // for materialised sources
	Parallel int
	Timeout  time.Duration
	Registry string // auto, on, off: see the configuration
	Log      *slog.Logger

	once    sync.Once
	slots   chan struct{}
	mu      sync.Mutex
	running map[schema.ID]*job
	wg      sync.WaitGroup
}

// job is one build under way here.
type job struct {
	cancel   context.CancelFunc
	canceled bool // on request, as opposed to the server stopping
}

func (r *Reconciler) init() {
	r.slots = make(chan struct{}, max(1, r.Parallel))
	r.running = map[schema.ID]*job{}
}

// Reconcile starts, watches or cancels one build. ctx is that of the call; the
// build itself ends with Stop.
func (r *Reconciler) Reconcile(ctx context.Context, bid schema.ID) (time.Duration, error) {
	r.once.Do(r.init)
	b, err := entity.Get[app.Build](ctx, r.Store, bid)
	if errs.Is(err, errs.NotFound) {
		r.abandon(bid)
		return 0, r.Logs.Delete(string(bid))
	}
	if err != nil {
		return 0, err
	}
	if ended(b) {
		return 0, nil
	}
	r.mu.Lock()
	j := r.running[bid]
	r.mu.Unlock()
	switch {
	case j != nil && b.Spec.Cancel:
		r.abandon(bid)
		return 0, nil
	case j != nil:
		return 0, nil
	case b.Spec.Cancel:
		return 0, r.finish(ctx, bid, func(b *app.Build) { b.Status.Phase = app.BuildPhaseCanceled })
	}
	select {
	case r.slots <- struct{}{}:
	default:
		return time.Second, nil
	}
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.Timeout)
	j = &job{cancel: cancel}
	r.mu.Lock()
	r.running[bid] = j
	r.mu.Unlock()
	r.wg.Go(func() {
		defer func() {
			cancel()
			r.mu.Lock()
			delete(r.running, bid)
			r.mu.Unlock()
			<-r.slots
		}()
		r.run(work, j, b)
	})
	return 0, nil
}

func ended(b *app.Build) bool {
	switch b.Status.Phase {
	case app.BuildPhaseSucceeded, app.BuildPhaseFailed, app.BuildPhaseCanceled:
		return true
	}
	return false
}

// abandon ends a running build on request.
func (r *Reconciler) abandon(bid schema.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if j := r.running[bid]; j != nil {
		j.canceled = true
		j.cancel()
	}
}

// Stop ends all running builds, without changing their entities: the next
// server does them again.
func (r *Reconciler) Stop() {
	r.mu.Lock()
	for _, j := range r.running {
		j.cancel()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

// run does one build and records its end.
func (r *Reconciler) run(ctx context.Context, j *job, b *app.Build) {
	log := r.Log.With("build", string(b.ID), "app", string(b.Spec.App))
	now := time.Now()
	record := context.WithoutCancel(ctx)
	err := r.update(record, b.ID, func(b *app.Build) {
		b.Status.Phase = app.BuildPhaseRunning
		b.Status.StartedAt = &now
	})
	if err != nil {
		log.Warn("start build", "error", err)
		return
	}
	out, err := r.build(ctx, b)
	r.mu.Lock()
	canceled := j.canceled
	r.mu.Unlock()
	switch {
	case err == nil:
		err = r.finish(record, b.ID, func(b *app.Build) {
			b.Status.Phase = app.BuildPhaseSucceeded
			b.Status.Image, b.Status.Services, b.Status.Env = out.image, out.services, out.env
		})
	case canceled:
		err = r.finish(record, b.ID, func(b *app.Build) { b.Status.Phase = app.BuildPhaseCanceled })
	case errors.Is(ctx.Err(), context.Canceled):
		log.Info("build interrupted; it will be done again")
		return
	default:
		log.Info("build failed", "error", err)
		cause := err
		err = r.finish(record, b.ID, func(b *app.Build) { explain(b, cause, ctx.Err() != nil, r.Timeout) })
	}
	if err != nil && !errs.Is(err, errs.NotFound) {
		log.Error("record the end of a build", "error", err)
	}
}

// explain records why a build failed.
func explain(b *app.Build, err error, late bool, timeout time.Duration) {
	b.Status.Phase = app.BuildPhaseFailed
	b.Status.Message, b.Status.Hint = err.Error(), errs.HintOf(err)
	var f *buildkit.Failure
	if errors.As(err, &f) {
		b.Status.LogTail = f.Log
	}
	if late {
		b.Status.Message = "the build took longer than " + timeout.String()
		b.Status.Hint = "build.timeout of the server's configuration says how long it may take"
	}
}

func (r *Reconciler) finish(ctx context.Context, bid schema.ID, change func(*app.Build)) error {
	now := time.Now()
	return r.update(ctx, bid, func(b *app.Build) {
		b.Status.EndedAt = &now
		change(b)
	})
}

func (r *Reconciler) update(ctx context.Context, bid schema.ID, change func(*app.Build)) error {
	_, err := entity.ModifyStatus(ctx, r.Store, bid, func(b *app.Build) error {
		if ended(b) {
			return errs.New(errs.FailedPrecondition, "build %s has ended already", bid)
		}
		change(b)
		return nil
	})
	return err
}
