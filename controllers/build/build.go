// Package build reconciles builds: it makes an image of an uploaded source, for
// an app or for a version of a template.
//
//	pending -> running -> succeeded | failed | canceled
//
// In: build.spec, the source store. Out: an image in the instance's image
// store, build.status, the build's log. A build runs in a goroutine of the
// Reconciler, so that a change of the entity (cancel) is seen meanwhile. A build
// whose server died is in phase running without a goroutine; the next server does it
// again, which the builder's cache makes cheap.
package build

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/baseimage"
	"miren.dev/runtime/components/buildkit"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Builder builds images; *buildkit.Daemon is one.
type Builder interface {
	Build(ctx context.Context, req buildkit.Request, progress func(buildlog.Event)) (*buildkit.Result, error)
}

// Bases makes base images; *baseimage.Store is one.
type Bases interface {
	// Resolve returns the local images that stand for names in a Dockerfile; a
	// name that is not in the result is pulled. notes are for people.
	Resolve(ctx context.Context, names []string, progress func(string)) (images map[string]*baseimage.Image, notes []string, err error)
}

// Sources gives access to uploaded sources.
type Sources interface {
	// Materialize writes the files of a source below dir, which it makes.
	// NotFound if the source, or a part of it, is missing.
	Materialize(ctx context.Context, digest, dir string) error
}

// maxAttempts bounds how often a build is tried when the builder goes away.
const maxAttempts = 3

// Reconciler runs builds.
type Reconciler struct {
	Store   entity.Store
	Builder Builder
	Bases   Bases
	Sources Sources
	Sealer  *schema.Sealer // opens secret variables of apps
	// Image resolves the name of an image to a reference of the node's image
	// store, and makes the image if necessary. For templates.
	Image func(ctx context.Context, name string) (string, error)
	// Content returns the store that has an image, by its exact name. NotFound if
	// the image does not exist.
	Content  func(ctx context.Context, image string) (content.Store, error)
	Logs     *buildlog.Logs
	TempDir  string // directory for materialised sources
	Parallel int
	Timeout  time.Duration
	Logger   *slog.Logger

	once    sync.Once
	slots   chan struct{}
	mu      sync.Mutex
	running map[schema.ID]*job
	stopped bool
	quit    context.Context // context of all builds; ends with Stop
	stop    context.CancelFunc
	wg      sync.WaitGroup
}

// Controller describes the reconciler to the controller runtime.
func (r *Reconciler) Controller() kit.Controller {
	return kit.Controller{
		Name: "build", Kind: app.BuildKind, Reconcile: r.Reconcile, Workers: 2,
		Access: kit.Access{Reads: []*schema.Kind{app.AppKind, sandbox.TemplateKind, sandbox.TemplateVersionKind}, Owns: kit.Fields(app.BuildKind, "status")},
	}
}

const (
	// poll is how often a build under way is reconciled when nothing changes.
	poll = 5 * time.Second
	// retryRecord is the longest wait before the end of a build is written
	// again while the store is unavailable.
	retryRecord = 2 * time.Second
	// recordTimeout bounds one attempt to write it; lastRecord bounds an
	// attempt that is under way when the server stops.
	recordTimeout = 10 * time.Second
	lastRecord    = time.Second
)

// job is one build that this process runs.
type job struct {
	ctx      context.Context // ends with the build
	cancel   context.CancelFunc
	canceled bool // a user cancelled the build, as opposed to the server stopping; guarded by mu
}

func (r *Reconciler) init() {
	r.slots = make(chan struct{}, max(1, r.Parallel))
	r.running = map[schema.ID]*job{}
	r.quit, r.stop = context.WithCancel(context.Background())
}

// Reconcile starts, watches or cancels one build. ctx belongs to this call
// alone; the build itself ends with Stop.
func (r *Reconciler) Reconcile(ctx context.Context, bid schema.ID) (time.Duration, error) {
	r.once.Do(r.init)
	b, err := entity.Get[app.Build](ctx, r.Store, bid)
	if errs.Is(err, errs.NotFound) {
		if r.abandon(bid) {
			return 200 * time.Millisecond, nil // the goroutine may still write its log
		}
		return 0, r.Logs.Delete(string(bid))
	}
	if err != nil {
		return 0, err
	}
	if b.Status.Phase.Ended() {
		return 0, nil
	}
	r.mu.Lock()
	under := r.running[bid] != nil
	r.mu.Unlock()
	switch {
	case under && b.Spec.Cancel:
		r.abandon(bid)
		return poll, nil
	case under:
		return poll, nil
	case b.Spec.Cancel:
		err := r.finish(ctx, bid, func(b *app.Build) { b.Status.Phase = app.BuildPhaseCanceled })
		if errs.Is(err, errs.FailedPrecondition) || errs.Is(err, errs.NotFound) {
			err = nil // the build ended meanwhile
		}
		return 0, err
	}
	if !r.begin(context.WithoutCancel(ctx), b) {
		return time.Second, nil
	}
	return poll, nil
}

// begin runs the build in a goroutine if there is a free slot.
func (r *Reconciler) begin(ctx context.Context, b *app.Build) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return false
	}
	select {
	case r.slots <- struct{}{}:
	default:
		return false
	}
	j := &job{}
	if r.Timeout > 0 {
		j.ctx, j.cancel = context.WithTimeout(ctx, r.Timeout)
	} else {
		j.ctx, j.cancel = context.WithCancel(ctx)
	}
	r.running[b.ID] = j
	r.wg.Go(func() {
		defer func() {
			j.cancel()
			r.mu.Lock()
			delete(r.running, b.ID)
			r.mu.Unlock()
			<-r.slots
		}()
		r.run(j, b)
	})
	return true
}

// abandon ends a running build that a user cancelled. It reports whether there
// was one.
func (r *Reconciler) abandon(bid schema.ID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	j := r.running[bid]
	if j == nil {
		return false
	}
	j.canceled = true
	j.cancel()
	return true
}

// Stop ends all running builds without changing their entities: the next server
// runs them again. No build begins after it.
func (r *Reconciler) Stop() {
	r.once.Do(r.init)
	r.mu.Lock()
	r.stopped = true
	r.stop()
	for _, j := range r.running {
		j.cancel()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

// run does one build and records its end.
func (r *Reconciler) run(j *job, b *app.Build) {
	log := r.Logger.With("build", string(b.ID), "app_id", string(b.Spec.App))
	now := time.Now()
	err := r.update(j.ctx, b.ID, func(b *app.Build) {
		b.Status.Phase = app.BuildPhaseRunning
		b.Status.StartedAt = &now
	})
	if err != nil {
		log.Warn("build cannot begin; trying again", "error", err)
		return // Reconcile looks again soon
	}
	out, err := r.attempt(j.ctx, b)
	r.mu.Lock()
	canceled, stopped := j.canceled, r.stopped
	r.mu.Unlock()
	cause := err
	var change func(*app.Build)
	switch {
	case err == nil:
		change = func(b *app.Build) {
			b.Status.Phase = app.BuildPhaseSucceeded
			b.Status.Image, b.Status.Services, b.Status.Tasks, b.Status.Env = out.image, out.services, out.tasks, out.env
			b.Status.Network, b.Status.Addons, b.Status.Routes = out.network, out.addons, out.routes
			if out.plan != nil {
				setPlan(b, out.plan)
			}
		}
	case canceled:
		change = func(b *app.Build) { b.Status.Phase = app.BuildPhaseCanceled }
	case stopped:
		log.Info("build interrupted; the next server runs it again")
		return
	case errors.Is(err, errElsewhere):
		log.Info("another process runs this build")
		return // the end of that build is a change; until then Reconcile polls
	default:
		log.Info("build failed", "error", err)
		late := errors.Is(j.ctx.Err(), context.DeadlineExceeded)
		change = func(b *app.Build) { setFailure(b, cause, late, r.Timeout) }
	}
	r.record(log, b.ID, change)
}

// record writes the end of a build, and tries again while the store is
// unavailable, so that the build is not lost.
func (r *Reconciler) record(log *slog.Logger, bid schema.ID, change func(*app.Build)) {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, retryRecord) {
		err := r.tryRecord(bid, change)
		switch errs.ClassOf(err) {
		case "", errs.NotFound, errs.FailedPrecondition: // or deleted, or ended by another process
			return
		case errs.InvalidArgument:
			log.Error("cannot store the end of a build; trying again", "error", err)
			cause := err
			change = func(b *app.Build) { setFailure(b, cause, false, 0) }
			if wait >= retryRecord {
				return
			}
		}
		log.Warn("record the end of a build", "error", err, "retry_in", wait)
		select {
		case <-r.quit.Done():
			log.Warn("end of a build not recorded; the next server runs it again", "error", err)
			return
		case <-time.After(wait):
		}
	}
}

// tryRecord writes the end of a build once. When the server stops, the attempt ends within lastRecord.
func (r *Reconciler) tryRecord(bid schema.ID, change func(*app.Build)) error {
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	hurry := context.AfterFunc(r.quit, func() {
		t := time.AfterFunc(lastRecord, cancel)
		context.AfterFunc(ctx, func() { t.Stop() })
	})
	defer hurry()
	return r.finish(ctx, bid, change)
}

// errElsewhere says that another process writes the log of this build.
var errElsewhere = errors.New("another process runs this build")

// attempt calls build. A panic while reading untrusted source fails that build
// alone.
func (r *Reconciler) attempt(ctx context.Context, b *app.Build) (out *outcome, err error) {
	defer func() {
		if p := recover(); p != nil {
			r.Logger.Error("build panicked", "build", string(b.ID), "panic", p, "stack", string(debug.Stack()))
			err = because(app.FailureReasonInternal, errs.New(errs.Internal, "the build met a fault of runtime itself: %v", p))
		}
	}()
	return r.build(ctx, b)
}

// failure is an error with the reason that a deployment reports.
type failure struct {
	reason app.FailureReason
	error
}

func (f *failure) Unwrap() error { return f.error }

// because gives err a reason, if it has none yet. It returns nil for nil.
func because(reason app.FailureReason, err error) error {
	var f *failure
	if err == nil || errors.As(err, &f) {
		return err
	}
	return &failure{reason, err}
}

// setFailure records why a build failed.
func setFailure(b *app.Build, err error, late bool, timeout time.Duration) {
	b.Status.Phase, b.Status.Reason = app.BuildPhaseFailed, app.FailureReasonBuild
	var why *failure
	if errors.As(err, &why) {
		b.Status.Reason = why.reason
	}
	b.Status.Message, b.Status.Hint = err.Error(), errs.HintOf(err)
	var f *buildkit.Failure
	if errors.As(err, &f) {
		b.Status.LogTail = f.Log
	}
	switch {
	case late:
		b.Status.Reason = app.FailureReasonTimeout
		b.Status.Message = "the build took longer than " + timeout.String()
		b.Status.Hint = "make it faster, or raise build.timeout in the server's configuration"
	case b.Status.Hint == "" && errs.Is(err, errs.Unavailable):
		b.Status.Hint = "`r doctor` checks the server; " + command(b) + " tries again"
	}
}

// command returns the command that repeats a build.
func command(b *app.Build) string {
	if b.Spec.TemplateVersion != "" {
		return "`r template build`"
	}
	return "`r deploy`"
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
		if b.Status.Phase.Ended() {
			return errs.New(errs.FailedPrecondition, "build %s has ended already", bid)
		}
		change(b)
		return nil
	})
	return err
}
