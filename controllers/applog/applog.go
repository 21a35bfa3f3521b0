// Package applog keeps what the processes of apps print beyond the life of their
// sandboxes.
//
//	Collector  copies new lines of the sandboxes of this node, and of the runners that are
//	           connected to this server, to the log of their app
//	Keeper     deletes the logs of apps that are gone, and what is too old
//
// A driver deletes the output of a deleted sandbox once the Collector has copied the rest (Finish); a runner asks this
// server to do that (FinishRunner).
//
// In: sandbox entities with an app, and the output that the driver or a runner keeps. Out:
// the store of logs, which is on this node. A line is in the store once: with the lines of
// a sandbox the store has how far they go in the sandbox's own log.
//
// Locks: Collector.mu is held for moments; a sandbox's mutex while it is copied.
package applog

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/logline"
	"miren.dev/runtime/pkg/logstore"
	"miren.dev/runtime/pkg/schema"
)

const (
	// busyPause is the pause before the log of a sandbox that printed is read again,
	// and idlePause that of one that prints nothing. A sandbox keeps some MiB, so a
	// line is lost only if more is printed in one pause.
	busyPause = time.Second
	idlePause = 5 * time.Second
	// batchLines and batchBytes bound the lines of one write.
	batchLines = 4096
	batchBytes = 1 << 20
	workers    = 4
	// runnerPass bounds one reading of a runner's sandbox, whatever the runner sends.
	runnerPass = 20 * time.Second
	// unasked is how long the source of a deleted sandbox is kept whose runner does not ask for its end.
	unasked = 24 * time.Hour
	maxText = 64 << 10 // bytes of a line of a runner, at which its node splits lines
)

// Logs is the output that a driver keeps.
type Logs interface {
	Logs(ctx context.Context, id string, q execution.LogQuery, line func(execution.LogLine) error) error
}

// Runners reads the output that runners keep.
type Runners interface {
	// Connected reports whether a runner is connected to this server.
	Connected(runner id.Node) bool
	// Logs sends lines of a sandbox of a runner, also of a deleted one.
	Logs(ctx context.Context, runner id.Node, sid id.Sandbox, q sandboxes.LogQuery, emit func(sandboxes.LogLine) error) error
}

// Collector copies the output of the sandboxes of apps on one node and on its runners.
type Collector struct {
	Store     entity.Store
	Informers *informer.Set
	Driver    Logs
	Runners   Runners // nil: there are none
	Logs      *logstore.Store
	Node      id.Node
	Logger    *slog.Logger

	mu      sync.Mutex
	sources map[string]*source // by sandbox
}

// source is a sandbox whose output is copied.
type source struct {
	mu     sync.Mutex
	app    string
	origin logstore.Origin
	runner id.Node // that it is on; "": it is on this node
	pause  time.Duration

	deleted time.Time // when the deletion of a sandbox on a runner was seen, under Collector.mu; zero: it was not
}

// Controller describes it to the controller runtime.
func (c *Collector) Controller() kit.Controller {
	return kit.Controller{
		Name: "app-log", Kind: sandbox.SandboxKind, Workers: workers, Reconcile: c.Reconcile,
		Filter: func(o schema.Object) bool {
			sb, ok := o.(*sandbox.Sandbox)
			return ok && sb.Spec.App != "" && (sb.Spec.Node == c.Node || sb.Spec.Runner && c.Runners != nil)
		},
		Deleted: kit.Last(c.deleted),
		Access:  kit.Access{Reads: []*schema.Kind{app.AppKind, app.AppVersionKind, core.NodeKind}},
	}
}

// Reconcile copies new lines of one sandbox, and returns when to look again.
func (c *Collector) Reconcile(ctx context.Context, sid schema.ID) (time.Duration, error) {
	sb := informer.Of[sandbox.Sandbox](c.Informers).Get(sid)
	if sb == nil {
		return 0, nil
	}
	if sb.Spec.Runner && !c.Runners.Connected(sb.Spec.Node) {
		return idlePause, nil
	}
	ended := sb.Status.Phase.Ended() // read before the log, so that the last lines are not missed
	s, err := c.source(ctx, sb)
	if err != nil {
		return 0, err
	}
	n, err := c.copy(ctx, s)
	switch {
	case s.runner != "" && errs.Is(err, errs.Unavailable):
		return idlePause, nil // the rest comes with the next reading
	case err != nil:
		return 0, err
	case ended:
		return 0, nil
	case n > 0:
		s.pause = busyPause
	default:
		s.pause = min(idlePause, max(busyPause, 2*s.pause))
	}
	return s.pause, nil
}

// source returns the source of a sandbox.
func (c *Collector) source(ctx context.Context, sb *sandbox.Sandbox) (*source, error) {
	sid := string(sb.ID)
	c.mu.Lock()
	s := c.sources[sid]
	c.mu.Unlock()
	if s != nil {
		return s, nil
	}
	s = &source{app: string(sb.Spec.App), origin: logstore.Origin{Source: sid, Service: sb.Spec.Service}}
	if sb.Spec.Runner {
		s.runner = sb.Spec.Node
	}
	if sb.Spec.AppVersion != "" {
		if v, err := entity.Get[app.AppVersion](ctx, c.Store, sb.Spec.AppVersion); err == nil {
			s.origin.Version = v.Spec.Number
		} else if !errs.Is(err, errs.NotFound) {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if other := c.sources[sid]; other != nil {
		return other, nil
	}
	if c.sources == nil {
		c.sources = map[string]*source{}
	}
	c.sources[sid] = s
	return s, nil
}

// copy appends the lines of a sandbox that the store does not have, and returns how
// many there were. After the error Unavailable there may be more.
func (c *Collector) copy(ctx context.Context, s *source) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var batch []logstore.Line
	bytes, n := 0, 0
	flush := func() error {
		err := c.Logs.Append(s.app, s.origin, batch)
		n += len(batch)
		batch, bytes = batch[:0], 0
		return err
	}
	from := c.Logs.Position(s.app, s.origin.Source)
	err := c.read(ctx, s, from, func(l logstore.Line) error {
		l.Level = logline.LevelOf(l.Text)
		batch = append(batch, l)
		if bytes += len(l.Text); len(batch) < batchLines && bytes < batchBytes {
			return nil
		}
		return flush()
	})
	if errs.Is(err, errs.NotFound) {
		return n, nil // it has no log yet
	}
	if err == nil || errs.Is(err, errs.Unavailable) {
		if ferr := flush(); ferr != nil {
			err = ferr
		}
	}
	return n, err
}

// read reads the lines of a sandbox after a position.
func (c *Collector) read(ctx context.Context, s *source, from int64, line func(logstore.Line) error) error {
	if s.runner == "" {
		return c.Driver.Logs(ctx, s.origin.Source, execution.LogQuery{Offset: from}, func(l execution.LogLine) error {
			return line(logstore.Line{Offset: l.Offset, At: l.At, Stderr: l.Stream == "stderr", Text: l.Text, Missed: l.Missed})
		})
	}
	pass, cancel := context.WithTimeout(ctx, runnerPass)
	defer cancel()
	err := c.Runners.Logs(pass, s.runner, id.Sandbox(s.origin.Source), sandboxes.LogQuery{Offset: from}, func(l sandboxes.LogLine) error {
		if l.Offset <= from || len(l.Text) > maxText || strings.Contains(l.Text, "\n") {
			return errs.New(errs.Corrupt, "the runner of sandbox %s sent a line at %d, after %d, that is none", s.origin.Source, l.Offset, from)
		}
		from = l.Offset
		if now := time.Now(); l.At.After(now) { // by its clock
			l.At = now
		}
		return line(logstore.Line{Offset: l.Offset, At: l.At, Stderr: l.Stderr, Text: l.Text, Missed: l.Missed})
	})
	if pass.Err() != nil && ctx.Err() == nil {
		return errs.New(errs.Unavailable, "runner %s did not send the output of sandbox %s within %s", s.runner, s.origin.Source, runnerPass)
	}
	return err
}

// deleted keeps the source of a deleted sandbox on a runner, which asks for its end (FinishRunner).
func (c *Collector) deleted(ctx context.Context, sb *sandbox.Sandbox) error {
	if !sb.Spec.Runner { // Finish has the end of one of this node
		return nil
	}
	s, err := c.source(ctx, sb)
	if err != nil {
		return err
	}
	now := time.Now()
	var old []*source
	c.mu.Lock()
	s.deleted = now
	for _, s := range c.sources {
		if !s.deleted.IsZero() && now.Sub(s.deleted) > unasked {
			old = append(old, s)
		}
	}
	c.mu.Unlock()
	for _, s := range old {
		if err := c.forget(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// FinishRunner copies the last lines of a deleted sandbox from a runner, which may delete them when it returns nil.
// FailedPrecondition: the sandbox was not deleted. Unavailable: the runner did not send all.
func (c *Collector) FinishRunner(ctx context.Context, runner id.Node, sid id.Sandbox) error {
	_, err := entity.Get[sandbox.Sandbox](ctx, c.Store, sid)
	if err == nil {
		return errs.New(errs.FailedPrecondition, "sandbox %s was not deleted", sid)
	}
	if !errs.Is(err, errs.NotFound) {
		return err
	}
	s, err := c.sourceOf(ctx, runner, sid)
	if s == nil || err != nil {
		return err
	}
	if s.runner != runner {
		return errs.New(errs.PermissionDenied, "sandbox %s was not on runner %s", sid, runner)
	}
	_, err = c.copy(ctx, s)
	if errs.Is(err, errs.Corrupt) { // it would be no other the next time
		c.Logger.Warn("the last output of a sandbox on a runner cannot be read", "sandbox", string(sid), "error", err)
		err = nil
	}
	if err != nil {
		return err
	}
	return c.forget(ctx, s)
}

// sourceOf returns the source of a deleted sandbox that a runner says it had; nil: nothing is copied of it. A server that
// has begun since the deletion knows only the app of the lines that it has: the runner must be allowed to run it.
func (c *Collector) sourceOf(ctx context.Context, runner id.Node, sid id.Sandbox) (*source, error) {
	c.mu.Lock()
	s := c.sources[string(sid)]
	c.mu.Unlock()
	if s != nil {
		return s, nil
	}
	if sb := informer.Of[sandbox.Sandbox](c.Informers).Get(schema.ID(sid)); sb != nil { // it is behind the store
		if sb.Spec.App == "" {
			return nil, nil
		}
		return c.source(ctx, sb)
	}
	name, o, ok := c.Logs.Find(string(sid))
	if !ok {
		return nil, nil // a sandbox of no app, or it has finished
	}
	n, err := entity.Get[core.Node](ctx, c.Store, runner)
	if err != nil || !n.Spec.Runner || !slices.Contains(n.Spec.Apps, name) {
		return nil, err
	}
	return &source{app: name, origin: o, runner: runner}, nil
}

// Finish copies the last lines of a sandbox whose entity is gone. Its own log may be
// deleted when it returns nil. If the app is gone too, the Keeper may have deleted the log
// of the app before these lines, so Finish deletes it.
func (c *Collector) Finish(ctx context.Context, sid string) error {
	c.mu.Lock()
	s := c.sources[sid]
	c.mu.Unlock()
	if s == nil {
		name, o, ok := c.Logs.Find(sid)
		if !ok {
			return nil // a sandbox of no app, or it has finished
		}
		s = &source{app: name, origin: o}
	}
	if _, err := c.copy(ctx, s); err != nil {
		return err
	}
	return c.forget(ctx, s)
}

// forget ends the copying of a sandbox, all lines of which are copied.
func (c *Collector) forget(ctx context.Context, s *source) error {
	if err := c.Logs.Forget(s.app, s.origin.Source); err != nil {
		return err
	}
	switch _, err := entity.Get[app.App](ctx, c.Store, id.App(s.app)); {
	case errs.Is(err, errs.NotFound):
		if err := c.Logs.Remove(s.app); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sources, s.origin.Source)
	return nil
}
