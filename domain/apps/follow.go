package apps

import (
	"context"
	"sync"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
)

const (
	// logGrace is how long the end of a deployment waits for the end of its build's
	// log, which comes first unless the build is stuck.
	logGrace = 5 * time.Second
	// buildPause is the longest wait before a build and its log, which are
	// written separately, are read again.
	buildPause = 250 * time.Millisecond
)

// Progress is one event of a deployment: a state of it, or an event of its
// build.
type Progress struct {
	Deployment *app.Deployment
	Build      *buildlog.Event
	Offset     int64 // position in the build's log after Build
}

// Follow calls emit with each state of a deployment, the present one first, and
// with the events of its build after the position offset of the log. It returns
// after the state in which the deployment has ended; the whole log comes before
// that, unless the build is stuck. emit is not called concurrently; its error ends
// Follow.
func (s *Service) Follow(ctx context.Context, did id.Deployment, offset int64, emit func(Progress) error) error {
	d, err := entity.Get[app.Deployment](ctx, s.Store, did)
	if err != nil {
		return err
	}
	var mu sync.Mutex // error of emit
	send := func(p Progress) error {
		mu.Lock()
		defer mu.Unlock()
		return emit(p)
	}
	logCtx, cancel := context.WithCancel(ctx)
	logDone := make(chan struct{})
	defer func() {
		cancel()
		<-logDone
	}()
	go func() {
		defer close(logDone)
		s.followBuild(logCtx, d, offset, send)
	}()
	last, err := informer.Of[app.Deployment](s.Informers).Await(ctx, d.ID, func(d *app.Deployment) (bool, error) {
		if d.Status.Phase.Ended() {
			return true, nil
		}
		return false, send(Progress{Deployment: d})
	})
	if err != nil {
		return err
	}
	select {
	case <-logDone:
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(logGrace):
	}
	return send(Progress{Deployment: last})
}

// followBuild sends the log of a deployment's build until the build has ended.
func (s *Service) followBuild(ctx context.Context, d *app.Deployment, offset int64, send func(Progress) error) {
	if d.Spec.Build == "" {
		return
	}
	err := s.BuildLog(ctx, d.Spec.Build, offset, true, func(e buildlog.Event, next int64) error {
		return send(Progress{Build: &e, Offset: next})
	})
	if err != nil && ctx.Err() == nil && !errs.Is(err, errs.NotFound) {
		s.Logger.Warn("follow a build log", "build", string(d.Spec.Build), "error", err)
	}
}

// BuildLog calls emit with the events of a build after the position offset of
// its log, and with the position after each. With follow it waits for the log to
// begin and continues until the build has ended, even if the build is run again.
// NotFound if the build does not exist, or has no log.
func (s *Service) BuildLog(ctx context.Context, bid id.Build, offset int64, follow bool, emit func(e buildlog.Event, next int64) error) error {
	for {
		b, err := entity.Get[app.Build](ctx, s.Store, bid)
		if err != nil {
			return err
		}
		ended := b.Status.Phase.Ended() // Read the build before the log, so that the last events are not missed.
		err = s.BuildLogs.Read(ctx, string(bid), offset, follow, func(e buildlog.Event, next int64) error {
			offset = next
			return emit(e, next)
		})
		switch {
		case errs.Is(err, errs.NotFound) && follow && !ended:
		case err != nil:
			return err
		case ended || !follow:
			return nil
		}
		if err := s.awaitBuildChange(ctx, b); err != nil {
			return err
		}
	}
}

// awaitBuildChange waits until a build is newer than b, for at most buildPause.
func (s *Service) awaitBuildChange(ctx context.Context, b *app.Build) error {
	short, cancel := context.WithTimeout(ctx, buildPause)
	defer cancel()
	_, err := informer.Of[app.Build](s.Informers).After(short, b.ID, b.Revision)
	if short.Err() != nil {
		return ctx.Err()
	}
	return err
}

// BuildEvent returns an event of a build's log as clients get it.
func BuildEvent(e *buildlog.Event) app.BuildEvent {
	return app.BuildEvent{
		Kind: string(e.Kind), Step: opt.Of(int64(e.Step)), Name: e.Name, At: e.At, Took: opt.Of(e.Took), Text: e.Text,
		Stderr: opt.Of(e.Stderr), Current: opt.Of(e.Current), Total: opt.Of(e.Total), Internal: opt.Of(e.Internal),
	}
}
