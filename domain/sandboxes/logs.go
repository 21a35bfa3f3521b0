package sandboxes

import (
	"context"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/logline"
	"miren.dev/runtime/pkg/logstore"
)

const (
	// logPause is the wait before a log that has not begun is read again.
	logPause = 200 * time.Millisecond
	// storePause is the wait before an unavailable store is asked again.
	storePause = 200 * time.Millisecond
)

// LogsRequest selects output of a sandbox, or of every sandbox of an app.
type LogsRequest struct {
	Sandbox id.Sandbox
	Offset  int64  // of Sandbox: lines after this position
	Project string // with App: its project; "": the default
	App     string // if Sandbox is empty
	Service string // with App: only this service; "": all
	Tail    *int64 // at most this many of the existing lines, the last ones, of each sandbox; nil: all
	// Follow continues after the existing lines: for a sandbox until it has
	// ended; for an app until ctx ends, with sandboxes that are created later.
	Follow bool
	Since  time.Time // only lines from then on; zero: all
	Until  time.Time // only lines before it, not with Follow; zero: all
	Grep   string    // only lines that match this regular expression; "": all
	Level  string    // only lines of this level or a more serious one; "": all
	// Limit, with App and without Tail, is how many of the existing lines are wanted at most, the last ones, as far as
	// sandbox.MaxLogSelection permits. 0: all.
	Limit int
}

// query returns what is selected, without Tail and Limit.
func (r *LogsRequest) query() (logstore.Query, error) {
	q := logstore.Query{Service: r.Service, Since: r.Since, Until: r.Until}
	var err error
	switch {
	case r.Follow && !r.Until.IsZero():
		return q, errs.New(errs.InvalidArgument, "lines before a time are not followed").WithHint("leave out one of both")
	case r.Limit > 0 && r.Tail != nil:
		return q, errs.New(errs.InvalidArgument, "a limit is of all lines together, and a tail of each sandbox").WithHint("leave out one of both")
	case r.Limit > 0 && r.App == "":
		return q, errs.New(errs.InvalidArgument, "a limit is for the lines of an app").WithHint("tail has the last lines of a sandbox")
	}
	if r.Level != "" {
		if q.Level, err = logline.ParseLevel(r.Level); err != nil {
			return q, err
		}
	}
	if r.Grep != "" {
		if q.Grep, err = regexp.Compile(r.Grep); err != nil {
			return q, errs.New(errs.InvalidArgument, "regular expression: %w", err).WithHint("the syntax is https://github.com/google/re2/wiki/Syntax")
		}
	}
	return q, nil
}

// Logs calls emit with each selected line: existing lines ordered by time,
// later ones as they arrive. emit may be called concurrently; the lines of one
// sandbox come in order. An error of emit ends Logs.
func (s *Service) Logs(ctx context.Context, req LogsRequest, emit func(sandbox.LogLine) error) error {
	if (req.Sandbox == "") == (req.App == "") {
		return errs.New(errs.InvalidArgument, "either a sandbox or an app says whose output is wanted")
	}
	q, err := req.query()
	if err != nil {
		return err
	}
	l := &logReader{Service: s, emit: emit, query: q, tail: req.Tail, limit: req.Limit, numbers: map[id.AppVersion]int64{}}
	if req.Sandbox != "" {
		return l.sandbox(ctx, req.Sandbox, req.Offset, req.Follow)
	}
	return l.app(ctx, &req)
}

// logReader answers one request.
type logReader struct {
	*Service
	emit    func(sandbox.LogLine) error
	query   logstore.Query
	tail    *int64                  // nil: all
	limit   int                     // 0: all
	kept    *logstore.Snapshot      // of an app; nil: its sandboxes are read from the beginning
	numbers map[id.AppVersion]int64 // version numbers by id
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
	src := &logSource{sb: sb, version: l.versionNumber(ctx, sb), offset: offset}
	if err := l.past(ctx, src, l.emit); err != nil || !follow {
		return err
	}
	return l.follow(ctx, src)
}

// past calls fn with the selected last lines of a sandbox after src.offset, and
// moves src.offset to the end. A log without lines is no error.
func (l *logReader) past(ctx context.Context, src *logSource, fn func(sandbox.LogLine) error) error {
	tail := 0
	if l.tail != nil {
		tail = int(*l.tail)
	}
	if l.tail != nil && tail == 0 {
		// The last line is read, but not passed on: it marks the end.
		tail, fn = 1, func(sandbox.LogLine) error { return nil }
	}
	err := l.read(ctx, src, tail, false, fn)
	if errs.Is(err, errs.NotFound) {
		return l.rest(ctx, src, fn)
	}
	return err
}

// read calls fn with the lines after src.offset and moves src.offset behind
// them.
func (l *logReader) read(ctx context.Context, src *logSource, tail int, follow bool, fn func(sandbox.LogLine) error) error {
	q := LogQuery{Offset: src.offset, Tail: tail, Follow: follow}
	return l.Node.Logs(ctx, src.sb.GetID(), q, func(x LogLine) error {
		line := logstore.Line{
			Source: string(src.sb.ID), Service: src.sb.Spec.Service, Version: src.version, Offset: x.Offset, At: x.At, Stderr: x.Stderr,
			Level: logline.LevelOf(x.Text), Text: x.Text, Missed: x.Missed,
		}
		var err error
		if l.query.Match(&line) {
			err = fn(logLine(&line))
		}
		if err == nil {
			src.offset = x.Offset
		}
		return err
	})
}

// optional returns nil for the zero value.
func optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// follow emits the output of a sandbox until the sandbox has ended. It waits
// for a log that has not begun.
func (l *logReader) follow(ctx context.Context, src *logSource) error {
	for {
		sb, err := entity.Get[sandbox.Sandbox](ctx, l.Store, src.sb.GetID())
		// Read the sandbox before the log, so that the last lines are not
		// missed.
		ended := errs.Is(err, errs.NotFound) || err == nil && sb.Status.Phase.Ended()
		err = l.read(ctx, src, 0, true, l.emit)
		if !errs.Is(err, errs.NotFound) {
			return err
		}
		if ended {
			return l.rest(ctx, src, l.emit)
		}
		if err := pause(ctx, logPause); err != nil {
			return err
		}
	}
}

// app emits the existing lines of all sandboxes of an app, ordered by time.
// Then it follows each sandbox, and later ones from their beginning.
func (l *logReader) app(ctx context.Context, req *LogsRequest) error {
	a, err := l.Apps.Find(ctx, req.Project, req.App)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	seen := map[id.Sandbox]bool{}
	sources, err := l.unseen(ctx, a, req.Service, seen)
	if err != nil {
		return err
	}
	done, err := l.keptLines(a.GetID())
	if err != nil {
		return err
	}
	defer done()
	for _, src := range sources {
		src.offset = l.kept.Position(string(src.sb.ID))
	}
	if err := l.history(ctx, sources); err != nil || !req.Follow {
		return err
	}
	start := func(sources []*logSource) {
		for _, src := range sources {
			g.Go(func() error { return l.follow(ctx, src) })
		}
	}
	start(sources)
	later := make(chan struct{}, 1) // holds a token when the app has got a sandbox
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
			more, err := l.unseen(ctx, a, req.Service, seen)
			for errs.Is(err, errs.Unavailable) {
				if err := pause(ctx, storePause); err != nil {
					return err
				}
				more, err = l.unseen(ctx, a, req.Service, seen)
			}
			if err != nil {
				return err
			}
			start(more)
		}
	})
	return g.Wait()
}

// unseen returns the app's sandboxes that are not in seen, oldest first, and adds
// them to it.
func (l *logReader) unseen(ctx context.Context, a *app.App, service string, seen map[id.Sandbox]bool) ([]*logSource, error) {
	list, err := OfApp(ctx, l.Store, a)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, ByAge)
	var out []*logSource
	for _, sb := range list {
		if seen[sb.GetID()] || (service != "" && sb.Spec.Service != service) {
			continue
		}
		seen[sb.GetID()] = true
		out = append(out, &logSource{sb: sb, version: l.versionNumber(ctx, sb), offset: l.kept.Position(string(sb.ID))})
	}
	return out, nil
}

// versionNumber returns the number of the version that a sandbox runs, 0 if it is
// not known.
func (l *logReader) versionNumber(ctx context.Context, sb *sandbox.Sandbox) int64 {
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

// history emits the lines of several logs, ordered by time as far as each log
// is in order.
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
	if l.tail == nil { // otherwise the sandboxes that exist say their last lines themselves
		ch := make(chan sandbox.LogLine, 64)
		lines = append(lines, ch)
		g.Go(func() error {
			defer close(ch)
			return l.readKept(ctx, ch)
		})
	}
	emit, flush := l.emit, func() error { return nil }
	if l.limit > 0 {
		emit, flush = lastLines(l.limit, l.emit)
	}
	g.Go(func() error {
		if err := mergeLines(lines, emit); err != nil {
			return err
		}
		return flush()
	})
	return g.Wait()
}

// mergeLines emits the lines of several channels, always the earliest first,
// until all are closed.
func mergeLines(lines []chan sandbox.LogLine, emit func(sandbox.LogLine) error) error {
	heads := make([]*sandbox.LogLine, len(lines))
	for {
		first := -1
		for i, ch := range lines {
			if heads[i] == nil {
				x, ok := <-ch
				if !ok {
					continue
				}
				heads[i] = &x
			}
			if first < 0 || heads[i].At.Before(heads[first].At) {
				first = i
			}
		}
		if first < 0 {
			return nil
		}
		if err := emit(*heads[first]); err != nil {
			return err
		}
		heads[first] = nil
	}
}

// pause waits for d, or until ctx ends.
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
