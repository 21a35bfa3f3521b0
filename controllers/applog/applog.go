// Package applog keeps what the processes of apps print beyond the life of their
// sandboxes.
//
//	Collector  copies new lines of the sandboxes of this node to the log of their app
//	Keeper     deletes the logs of apps that are gone, and what is too old
//
// In: sandbox entities with an app, and the output that the driver keeps. Out: the
// store of logs, which is on this node. A line is in the store once: with the lines of
// a sandbox the store has how far they go in the sandbox's own log.
//
// Locks: Collector.mu is held for moments; a sandbox's mutex while it is copied.
package applog

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/controllers/kit"
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
)

// Logs is the output that a driver keeps.
type Logs interface {
	Logs(ctx context.Context, id string, q execution.LogQuery, line func(execution.LogLine) error) error
}

// Collector copies the output of the sandboxes of apps on one node.
type Collector struct {
	Store     entity.Store
	Informers *informer.Set
	Driver    Logs
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
	pause  time.Duration
}

// Controller describes it to the controller runtime.
func (c *Collector) Controller() kit.Controller {
	return kit.Controller{
		Name: "app-log", Kind: sandbox.SandboxKind, Workers: workers, Reconcile: c.Reconcile,
		Filter: func(o schema.Object) bool {
			sb, ok := o.(*sandbox.Sandbox)
			return ok && sb.Spec.Node == c.Node && sb.Spec.App != ""
		},
		Access: kit.Access{Reads: []*schema.Kind{app.AppKind, app.AppVersionKind}},
	}
}

// Reconcile copies new lines of one sandbox, and returns when to look again.
func (c *Collector) Reconcile(ctx context.Context, sid schema.ID) (time.Duration, error) {
	sb := informer.Of[sandbox.Sandbox](c.Informers).Get(sid)
	if sb == nil {
		return 0, nil // Finish has the end
	}
	ended := sb.Status.Phase.Ended() // read before the log, so that the last lines are not missed
	s, err := c.source(ctx, sb)
	if err != nil {
		return 0, err
	}
	n, err := c.copy(ctx, s)
	switch {
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
// many there were.
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
	err := c.Driver.Logs(ctx, s.origin.Source, execution.LogQuery{Offset: from}, func(l execution.LogLine) error {
		batch = append(batch, logstore.Line{
			Offset: l.Offset, At: l.At, Stderr: l.Stream == "stderr", Level: logline.LevelOf(l.Text), Text: l.Text, Missed: l.Missed,
		})
		if bytes += len(l.Text); len(batch) < batchLines && bytes < batchBytes {
			return nil
		}
		return flush()
	})
	if errs.Is(err, errs.NotFound) {
		return n, nil // it has no log yet
	}
	if err == nil {
		err = flush()
	}
	return n, err
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
	if err := c.Logs.Forget(s.app, sid); err != nil {
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
	delete(c.sources, sid)
	return nil
}
