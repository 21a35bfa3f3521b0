package rpcserver

import (
	"cmp"
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

const (
	// logAgain is how often it is looked whether a sandbox has begun to print.
	logAgain = 200 * time.Millisecond
	// storeAgain is the pause before a store that is away is asked again.
	storeAgain = 200 * time.Millisecond
)

// Logs sends the output of a sandbox, or of all sandboxes of an app.
func (s *sandboxes) Logs(ctx context.Context, req *sandbox.LogsRequest, st rpc.ServerStream[rpc.None, sandbox.LogBatch]) error {
	if (req.Sandbox == "") == (req.App == "") {
		return errs.New(errs.InvalidArgument, "either a sandbox or an app says whose output is wanted")
	}
	l := &logReader{sandboxes: s, out: newLogSender(st), tail: req.Tail, numbers: map[id.AppVersion]int64{}}
	var err error
	if req.Sandbox != "" {
		err = l.sandbox(ctx, req.Sandbox, value(req.Offset), yes(req.Follow))
	} else {
		err = l.app(ctx, req, yes(req.Follow))
	}
	if serr := l.out.close(); serr != nil && ctx.Err() == nil {
		return serr
	}
	return err
}

// logReader answers one request.
type logReader struct {
	*sandboxes
	out     *logSender
	tail    *int64                  // nil: all
	numbers map[id.AppVersion]int64 // of versions
}

// logSource is the log of one sandbox and how far it was read.
type logSource struct {
	sb      *sandbox.Sandbox
	version int64
	offset  int64
}

func (l *logReader) sandbox(ctx context.Context, sid id.Sandbox, offset int64, follow bool) error {
	sb, err := entity.Get[sandbox.Sandbox](ctx, l.Store, sid)
	if err != nil {
		return err
	}
	src := &logSource{sb: sb, version: l.number(ctx, sb), offset: offset}
	if err := l.past(ctx, src, l.out.add); err != nil || !follow {
		return err
	}
	return l.follow(ctx, src)
}

// past gives as many of the last lines of a sandbox after src.offset as are
// wanted to fn, and moves that to the end. It is no error that there are none yet.
func (l *logReader) past(ctx context.Context, src *logSource, fn func(sandbox.LogLine) error) error {
	tail := int(value(l.tail))
	if l.tail != nil && tail == 0 {
		// The last one is read, not given: it says where the end is.
		tail, fn = 1, func(sandbox.LogLine) error { return nil }
	}
	err := l.logs(ctx, src, tail, false, fn)
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	return err
}

func (l *logReader) logs(ctx context.Context, src *logSource, tail int, follow bool, fn func(sandbox.LogLine) error) error {
	q := execution.LogQuery{Offset: src.offset, Tail: tail, Follow: follow}
	return l.Driver.Logs(ctx, string(src.sb.ID), q, func(x execution.LogLine) error {
		err := fn(sandbox.LogLine{
			Sandbox: src.sb.GetID(), Service: src.sb.Spec.Service, Version: ptr(src.version), Offset: ptr(x.Offset), At: x.At,
			Stderr: ptr(x.Stream == "stderr"), Text: x.Text,
		})
		if err == nil {
			src.offset = x.Offset
		}
		return err
	})
}

// follow sends what a sandbox prints until it has ended. It waits for one that
// has not begun.
func (l *logReader) follow(ctx context.Context, src *logSource) error {
	for {
		sb, err := entity.Get[sandbox.Sandbox](ctx, l.Store, src.sb.GetID())
		// Asked before reading, so that the last lines are not missed.
		over := errs.Is(err, errs.NotFound) || err == nil && sb.Status.Phase.Ended()
		err = l.logs(ctx, src, 0, true, l.out.add)
		if !errs.Is(err, errs.NotFound) {
			return err
		}
		if over {
			return nil
		}
		if err := pause(ctx, logAgain); err != nil {
			return err
		}
	}
}

// app sends what there is of all sandboxes of an app in the order of time. Then
// it follows each, and those that come later from their beginning.
func (l *logReader) app(ctx context.Context, req *sandbox.LogsRequest, follow bool) error {
	a, err := l.Service.App(ctx, req.Project, req.App)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	seen := map[id.Sandbox]bool{}
	sources, err := l.fresh(ctx, a, req.Service, seen)
	if err != nil {
		return err
	}
	if err := l.history(ctx, sources); err != nil || !follow {
		return err
	}
	start := func(sources []*logSource) {
		for _, src := range sources {
			g.Go(func() error { return l.follow(ctx, src) })
		}
	}
	start(sources)
	later := make(chan struct{}, 1) // holds a token when a sandbox of the app has appeared
	defer informer.Of[sandbox.Sandbox](l.Informers).Handle(func(c informer.Change[*sandbox.Sandbox]) {
		if c.Old == nil && c.New.Spec.App == a.GetID() {
			select {
			case later <- struct{}{}:
			default:
			}
		}
	})()
	g.Go(func() error {
		for {
			select {
			case <-later:
			case <-ctx.Done():
				return ctx.Err()
			}
			more, err := l.fresh(ctx, a, req.Service, seen)
			for errs.Is(err, errs.Unavailable) {
				if err := pause(ctx, storeAgain); err != nil {
					return err
				}
				more, err = l.fresh(ctx, a, req.Service, seen)
			}
			if err != nil {
				return err
			}
			start(more)
		}
	})
	return g.Wait()
}

// fresh returns the app's sandboxes that are not in seen, the oldest first, and
// adds them.
func (l *logReader) fresh(ctx context.Context, a *app.App, service string, seen map[id.Sandbox]bool) ([]*logSource, error) {
	list, err := l.Service.AppSandboxes(ctx, a)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b *sandbox.Sandbox) int {
		return cmp.Or(cmp.Compare(a.CreateRevision, b.CreateRevision), cmp.Compare(a.ID, b.ID))
	})
	var out []*logSource
	for _, sb := range list {
		if seen[sb.GetID()] || (service != "" && sb.Spec.Service != service) {
			continue
		}
		seen[sb.GetID()] = true
		out = append(out, &logSource{sb: sb, version: l.number(ctx, sb)})
	}
	return out, nil
}

// number returns that of the version of a sandbox; 0 if it cannot be found out.
func (l *logReader) number(ctx context.Context, sb *sandbox.Sandbox) int64 {
	if sb.Spec.AppVersion == "" {
		return 0
	}
	n, ok := l.numbers[sb.Spec.AppVersion]
	if !ok {
		v, err := entity.Get[app.AppVersion](ctx, l.Store, sb.Spec.AppVersion)
		if err == nil {
			n = v.Spec.Number
		}
		l.numbers[sb.Spec.AppVersion] = n
	}
	return n
}

// history sends what there is of several logs, in the order of time as far as
// each is in order.
func (l *logReader) history(ctx context.Context, sources []*logSource) error {
	g, ctx := errgroup.WithContext(ctx)
	lines := make([]chan sandbox.LogLine, len(sources))
	for i, src := range sources {
		ch := make(chan sandbox.LogLine, 16)
		lines[i] = ch
		g.Go(func() error {
			defer close(ch)
			return l.past(ctx, src, func(x sandbox.LogLine) error {
				select {
				case ch <- x:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		})
	}
	g.Go(func() error {
		heads := make([]*sandbox.LogLine, len(lines))
		for {
			first := -1
			for i, ch := range lines {
				if heads[i] == nil {
					if x, ok := <-ch; ok {
						heads[i] = &x
					} else {
						continue
					}
				}
				if first < 0 || heads[i].At.Before(heads[first].At) {
					first = i
				}
			}
			if first < 0 {
				return nil
			}
			if err := l.out.add(*heads[first]); err != nil {
				return err
			}
			heads[first] = nil
		}
	})
	return g.Wait()
}

// pause waits for d.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
