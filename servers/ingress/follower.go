package ingress

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// kinds are what the table is made from.
var kinds = []*schema.Kind{app.AppKind, app.RouteKind, sandbox.SandboxKind}

// follower keeps the table in step with the store. One watch carries all
// kinds, so that the table always is the state at one revision: a cache per
// kind would show the switch of an app's version before, or after, the
// readiness of the sandboxes it switches to.
//
// Only run's goroutine touches objects and relisting.
type follower struct {
	in      *Ingress
	objects objects

	mu      sync.Mutex
	at      schema.Token  // everything up to here is in the table
	synced  bool          // the store was listed by this process
	lastErr string        // why the store is not followed now
	moved   chan struct{} // closed when at moves
	saved   State         // handed to the writer
	dirty   chan struct{}
}

// objects are the entities, reduced to what the table needs.
type objects struct {
	apps      map[schema.ID]App
	routes    map[schema.ID]Route
	sandboxes map[schema.ID]Sandbox
}

func newObjects() objects {
	return objects{apps: map[schema.ID]App{}, routes: map[schema.ID]Route{}, sandboxes: map[schema.ID]Sandbox{}}
}

func newFollower(in *Ingress) *follower {
	return &follower{in: in, objects: newObjects(), moved: make(chan struct{}), dirty: make(chan struct{}, 1)}
}

// load puts the table of the last process in place, if there is one.
func (f *follower) load() {
	path := f.in.cfg.TableFile
	if path == "" {
		return
	}
	s, err := loadState(path)
	switch {
	case errs.Is(err, errs.NotFound):
		return
	case err != nil:
		f.in.cfg.Logger.Error("the saved table cannot be used, starting without", "error", err)
		return
	}
	f.in.install(s)
	f.setPosition(s.Token)
}

func (f *follower) position() schema.Token {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at
}

func (f *follower) setPosition(t schema.Token) {
	f.mu.Lock()
	f.at = t
	close(f.moved)
	f.moved = make(chan struct{})
	f.mu.Unlock()
	f.in.metrics.revision.Set(float64(t.Revision))
}

// run follows the store until ctx ends.
func (f *follower) run(ctx context.Context) {
	var writer sync.WaitGroup
	writer.Go(func() { f.write(ctx) })
	defer writer.Wait()
	if f.in.cfg.Reader == nil {
		<-ctx.Done()
		return
	}
	wait := time.Duration(0)
	for ctx.Err() == nil {
		progress, err := f.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		f.in.metrics.storeError.Inc()
		f.mu.Lock()
		f.lastErr = err.Error()
		f.mu.Unlock()
		if errs.Is(err, errs.Compacted) {
			f.in.cfg.Logger.Info("watch position is gone, listing again", "error", err)
		} else {
			f.in.cfg.Logger.Warn("the store cannot be followed, serving the last table", "error", err)
		}
		if progress {
			wait = 0
		}
		wait = min(2*wait+50*time.Millisecond, 3*time.Second)
		select {
		case <-time.After(wait - rand.N(wait/4)):
		case <-ctx.Done():
		}
	}
}

// follow lists and then watches, again from the last token as long as that is
// possible. progress tells whether a list succeeded.
func (f *follower) follow(ctx context.Context) (progress bool, _ error) {
	from, publishAt, err := f.list(ctx)
	if err != nil {
		return false, err
	}
	listed := from != publishAt // but not published
	if !listed {
		f.publish(from)
	}
	for failures := 0; ; failures++ {
		err := f.watch(ctx, &from, publishAt, &listed, &failures)
		if ctx.Err() != nil || errs.Is(err, errs.Compacted) || failures > 4 {
			return true, err
		}
		f.in.cfg.Logger.Info("the watch broke, resuming", "error", err, "revision", from.Revision)
		select {
		case <-time.After(time.Duration(failures) * 100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// list reads everything anew. The kinds are listed at different revisions:
// the watch begins at the earliest, and the table is complete at the latest.
func (f *follower) list(ctx context.Context) (from, publishAt schema.Token, _ error) {
	fresh := newObjects()
	for i, k := range kinds {
		q := entity.Query{Kind: k.Name}
		for {
			page, err := f.in.cfg.Reader.List(ctx, q)
			if err != nil {
				return from, publishAt, errs.Wrap(err, "list %s", k.Plural)
			}
			for j := range page.Records {
				f.put(&fresh, &page.Records[j])
			}
			if page.Cursor == "" {
				if i == 0 {
					from, publishAt = page.Token, page.Token
				}
				if page.Token.Epoch != from.Epoch {
					return from, publishAt, errs.New(errs.Compacted, "a new epoch began while listing")
				}
				from.Revision = min(from.Revision, page.Token.Revision)
				publishAt.Revision = max(publishAt.Revision, page.Token.Revision)
				break
			}
			q.Cursor = page.Cursor
		}
	}
	f.objects = fresh
	return from, publishAt, nil
}

func (f *follower) watch(ctx context.Context, from *schema.Token, publishAt schema.Token, listed *bool, failures *int) error {
	w, err := f.in.cfg.Reader.Watch(ctx, entity.WatchQuery{From: *from, Bookmarks: time.Second})
	if err != nil {
		return errs.Wrap(err, "watch")
	}
	defer w.Close()
	for {
		events, err := w.Next(ctx)
		changed := false
		for i := range events {
			e := &events[i]
			switch e.Type {
			case entity.EventPut:
				changed = f.put(&f.objects, &e.Record) || changed
			case entity.EventDelete:
				changed = f.objects.remove(&e.Record) || changed
			}
			*from = e.Token
			*failures = 0
		}
		if len(events) > 0 && from.Revision >= publishAt.Revision {
			if changed || *listed {
				f.publish(*from)
				*listed = false
			} else if f.position() != *from {
				f.setPosition(*from)
			}
		}
		if err != nil {
			return errs.Wrap(err, "watch")
		}
	}
}

// publish puts a table of the objects in place.
func (f *follower) publish(at schema.Token) {
	s := f.objects.state(at)
	f.in.install(s)
	f.mu.Lock()
	f.synced, f.lastErr, f.saved = true, "", *s
	f.mu.Unlock()
	f.setPosition(at)
	select {
	case f.dirty <- struct{}{}:
	default:
	}
}

// put takes over what matters of a record, and reports whether it changed.
func (f *follower) put(o *objects, r *schema.Record) bool {
	var obj schema.Object
	for _, k := range kinds {
		if k.Name == r.Kind {
			var err error
			if obj, err = k.Decode(r); err != nil {
				f.in.cfg.Logger.Error("entity cannot be decoded", "kind", r.Kind, "id", r.ID, "error", err)
				return false
			}
		}
	}
	switch obj := obj.(type) {
	case *app.App:
		return set(o.apps, obj.ID, App{ID: obj.ID, Name: obj.Name, Active: schema.ID(obj.Status.ActiveVersion),
			Deploying: obj.Status.ActiveDeployment != "", Created: obj.CreateRevision}, true)
	case *app.Route:
		return set(o.routes, obj.ID, Route{ID: obj.ID, Host: obj.Spec.Host, Path: obj.Spec.Path, App: schema.ID(obj.Spec.App), Service: obj.Spec.Service}, true)
	case *sandbox.Sandbox:
		port := httpPort(obj.Spec.Template.Ports)
		serves := obj.Spec.App != "" && obj.Status.Phase == sandbox.SandboxPhaseRunning && obj.Status.Ready &&
			obj.Spec.Desired == sandbox.DesiredStateRunning && obj.Status.Address != "" && port != 0
		return set(o.sandboxes, obj.ID, Sandbox{ID: obj.ID, App: schema.ID(obj.Spec.App), Version: schema.ID(obj.Spec.AppVersion),
			Service: obj.Spec.Service, Address: net.JoinHostPort(obj.Status.Address, strconv.FormatInt(port, 10))}, serves)
	}
	return false
}

// httpPort is the port named http, or else the first.
func httpPort(ports []sandbox.Port) int64 {
	for _, p := range ports {
		if p.Name == "http" {
			return p.Number
		}
	}
	if len(ports) > 0 {
		return ports[0].Number
	}
	return 0
}

// set makes m hold v under id, or nothing if keep is false.
func set[V comparable](m map[schema.ID]V, id schema.ID, v V, keep bool) (changed bool) {
	old, had := m[id]
	if !keep {
		delete(m, id)
		return had
	}
	m[id] = v
	return !had || old != v
}

func (o *objects) remove(r *schema.Record) bool {
	switch r.Kind {
	case app.KindApp:
		return set(o.apps, r.ID, App{}, false)
	case app.KindRoute:
		return set(o.routes, r.ID, Route{}, false)
	case sandbox.KindSandbox:
		return set(o.sandboxes, r.ID, Sandbox{}, false)
	}
	return false
}

func (o *objects) state(at schema.Token) *State {
	return &State{Token: at, Apps: sorted(o.apps), Routes: sorted(o.routes), Sandboxes: sorted(o.sandboxes)}
}

func sorted[V any](m map[schema.ID]V) []V {
	out := make([]V, 0, len(m))
	for _, id := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[id])
	}
	return out
}

// saveEvery bounds how often the table is written.
const saveEvery = 200 * time.Millisecond

// write keeps the table file in step until ctx ends, and writes a last time
// then.
func (f *follower) write(ctx context.Context) {
	for {
		select {
		case <-f.dirty:
			f.save()
		case <-ctx.Done():
			select {
			case <-f.dirty:
				f.save()
			default:
			}
			return
		}
		select {
		case <-time.After(saveEvery):
		case <-ctx.Done():
		}
	}
}

func (f *follower) save() {
	if f.in.cfg.TableFile == "" {
		return
	}
	f.mu.Lock()
	s := f.saved
	f.mu.Unlock()
	if err := saveState(f.in.cfg.TableFile, &s); err != nil {
		f.in.cfg.Logger.Error("the table cannot be saved", "error", err)
	}
}

var errNotYet = errors.New("not yet")

// waitFor waits until the table has everything up to revision.
func (f *follower) waitFor(ctx context.Context, revision schema.Revision) (schema.Token, error) {
	for {
		f.mu.Lock()
		at, moved, synced := f.at, f.moved, f.synced
		f.mu.Unlock()
		if synced && at.Revision >= revision {
			return at, nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return at, errNotYet
		}
	}
}
