package mcpserver

import (
	"context"
	"path"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const (
	// maxSubscriptions bounds the subscriptions of a session, and
	// maxFileSubscriptions those to files: each is a call that stays open, and the
	// sessions of a caller share one connection.
	maxSubscriptions     = 32
	maxFileSubscriptions = 5
	// maxURI bounds the URI of a subscription, in bytes.
	maxURI = 8 << 10
	// notifyAfter is the time for which changes of a resource are collected into
	// one notification.
	notifyAfter = 250 * time.Millisecond
	// followAgain is the time before a watch that ended is begun again, at first
	// and at most.
	followAgain, maxFollowAgain = time.Second, time.Minute
)

// follower follows the sandboxes of the project from the first subscription or
// sandbox of the session on. It tells the client of changes of the resources to
// which it subscribed, and keeps the list of resources, which has the sandboxes
// that the session made.
type follower struct {
	s    *session
	ctx  context.Context // ends with the session
	wg   sync.WaitGroup
	wake chan struct{} // there is something in changed; holds one

	starting sync.Mutex // held while the first watch begins
	started  bool

	mu         sync.Mutex
	closed     bool
	subscribed map[string]*subscription // by URI
	changed    map[string]struct{}      // URIs of which the client is not told yet
}

type subscription struct {
	target
	known bool               // the URI names a resource of sandboxes
	end   context.CancelFunc // of the watch of its file
	moved chan struct{}      // its sandbox has changed; holds one
}

func newFollower(ctx context.Context, s *session) *follower {
	return &follower{s: s, ctx: ctx, wake: make(chan struct{}, 1), subscribed: map[string]*subscription{}, changed: map[string]struct{}{}}
}

// start begins to follow, unless that was done.
func (f *follower) start(ctx context.Context) error {
	f.starting.Lock()
	defer f.starting.Unlock()
	if f.started {
		return nil
	}
	w, err := f.watch(ctx, schema.Token{})
	if err != nil {
		return err
	}
	if !f.run(func() { f.follow(w) }) || !f.run(f.notify) {
		w.Close()
		return errEnded()
	}
	f.started = true
	return nil
}

func errEnded() error { return errs.New(errs.Unavailable, "the session has ended") }

// run runs do beside the session; false if that has ended.
func (f *follower) run(do func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.wg.Go(do)
	}
	return !f.closed
}

// close waits for the end of what runs beside a session that has ended.
func (f *follower) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.wg.Wait()
}

func (f *follower) watch(ctx context.Context, from schema.Token) (entity.Watch, error) {
	project, err := f.s.projectID(ctx)
	if err != nil {
		return nil, err
	}
	return f.s.store.Watch(ctx, entity.WatchQuery{Kinds: []string{sandbox.KindSandbox}, Project: project, From: from})
}

// follow takes the changes of sandboxes until the session ends.
func (f *follower) follow(w entity.Watch) {
	var from schema.Token
	pause := followAgain
	for {
		events, err := w.Next(f.ctx)
		for ; err == nil; events, err = w.Next(f.ctx) {
			for i := range events {
				from = events[i].Token
				f.take(&events[i])
			}
			pause = followAgain
		}
		w.Close()
		for err != nil {
			if errs.Is(err, errs.Compacted) {
				from = schema.Token{}
			}
			f.s.Logger.Debug("the watch of sandboxes ended", "error", err)
			if !f.sleep(pause) {
				return
			}
			pause = min(2*pause, maxFollowAgain)
			w, err = f.watch(f.ctx, from)
		}
		f.each(func(_ string, sub *subscription) bool { return sub.known }) // what was missed is not known
	}
}

// sleep returns false when the session ends.
func (f *follower) sleep(d time.Duration) bool {
	select {
	case <-f.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// take takes a change of a sandbox.
func (f *follower) take(ev *entity.Event) {
	if ev.Type == entity.EventBookmark {
		return
	}
	sb, err := entity.Decode[sandbox.Sandbox](&ev.Record)
	if err != nil || !visible(sb) {
		return
	}
	if ev.Type == entity.EventDelete || sb.Status.Phase.Ended() {
		f.s.server.RemoveResources(listURI + string(sb.ID))
	}
	f.each(func(_ string, sub *subscription) bool {
		return sub.known && (sub.sandbox == "" || sub.sandbox == string(sb.ID) || sub.sandbox == sb.Name)
	})
}

// each says that the resources have changed, or the sandboxes of their files,
// whose subscription concerned is true for.
func (f *follower) each(concerned func(uri string, sub *subscription) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for uri, sub := range f.subscribed {
		if !concerned(uri, sub) {
			continue
		}
		if sub.file == "" {
			f.touchLocked(uri)
			continue
		}
		select {
		case sub.moved <- struct{}{}:
		default:
		}
	}
}

func (f *follower) touch(uri string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.touchLocked(uri)
}

func (f *follower) touchLocked(uri string) {
	if f.subscribed[uri] == nil {
		return
	}
	f.changed[uri] = struct{}{}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// notify tells the client of what has changed.
func (f *follower) notify() {
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-f.wake:
		}
		if !f.sleep(notifyAfter) {
			return
		}
		f.mu.Lock()
		changed := f.changed
		f.changed = map[string]struct{}{}
		f.mu.Unlock()
		for uri := range changed {
			// A client that has gone needs no notification.
			_ = f.s.server.ResourceUpdated(f.ctx, &sdk.ResourceUpdatedNotificationParams{URI: uri})
		}
	}
}

// list adds sandboxes of the session to the list of resources.
func (f *follower) list(ctx context.Context, sids ...id.Sandbox) {
	if !f.s.has("describe_sandbox") {
		return
	}
	if err := f.start(ctx); err != nil { // then they stay in the list when they end
		f.s.Logger.Debug("sandboxes are not followed", "error", err)
	}
	for _, sid := range sids {
		f.s.server.AddResource(&sdk.Resource{URI: listURI + string(sid), Name: string(sid), Title: "Sandbox " + string(sid), MIMEType: jsonType,
			Description: "A sandbox that this session made"}, f.s.resource)
	}
}

// subscribe makes the session follow a resource. What does not exist can be
// followed until it does; of another project nothing is told.
func (f *follower) subscribe(ctx context.Context, req *sdk.SubscribeRequest) error {
	ctx, cancel := f.s.bound(ctx)
	defer cancel()
	uri := req.Params.URI
	t, known := parseURI(uri)
	if len(uri) > maxURI {
		return errs.New(errs.InvalidArgument, "the URI has %d bytes, at most %d are possible", len(uri), maxURI)
	}
	if known {
		if err := f.start(ctx); err != nil {
			return toolError(err)
		}
	}
	sub := &subscription{target: t, known: known, moved: make(chan struct{}, 1)}
	var follow context.Context
	follow, sub.end = context.WithCancel(f.ctx)
	if err := f.add(uri, sub); err != nil || !known || t.file == "" {
		sub.end()
		return err
	}
	begun := make(chan struct{})
	if !f.run(func() { f.file(follow, uri, sub, sync.OnceFunc(func() { close(begun) })) }) {
		return errEnded()
	}
	select {
	case <-begun:
		return nil
	case <-ctx.Done():
		f.remove(uri)
		return ctx.Err()
	}
}

// add adds a subscription in place of an earlier one. ResourceExhausted if there
// are too many.
func (f *follower) add(uri string, sub *subscription) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	files := 0
	for other, s := range f.subscribed {
		if s.file != "" && other != uri {
			files++
		}
	}
	old := f.subscribed[uri]
	if old == nil && len(f.subscribed) >= maxSubscriptions || sub.file != "" && files >= maxFileSubscriptions {
		return errs.New(errs.ResourceExhausted, "a session has at most %d subscriptions, of them %d to files", maxSubscriptions, maxFileSubscriptions)
	}
	if f.subscribed[uri] = sub; old != nil {
		old.end()
	}
	return nil
}

func (f *follower) remove(uri string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if sub := f.subscribed[uri]; sub != nil {
		sub.end()
	}
	delete(f.subscribed, uri)
	delete(f.changed, uri)
}

func (f *follower) unsubscribe(_ context.Context, req *sdk.UnsubscribeRequest) error {
	f.remove(req.Params.URI)
	return nil
}

// file follows a file until ctx ends. begun is called when its changes are
// noticed, or when there is nothing to follow yet.
func (f *follower) file(ctx context.Context, uri string, sub *subscription, begun func()) {
	defer begun()
	changed := func() { f.touch(uri) }
	first, pause := true, notifyAfter
	for {
		live := false
		err := f.fileOnce(ctx, sub, func() {
			if live, pause = true, notifyAfter; !first {
				changed() // what was missed is not known
			}
			first = false
			begun()
		}, changed)
		first = false
		begun()
		if live && err != nil {
			changed()
		}
		// The sandbox is looked at again when it changes, or after a while if it runs.
		again := time.After(pause)
		if errs.Is(err, errs.FailedPrecondition) || errs.Is(err, errs.NotFound) || errs.Is(err, errs.PermissionDenied) {
			again = nil
		}
		pause = min(2*pause, maxFollowAgain)
		select {
		case <-ctx.Done():
			return
		case <-sub.moved:
		case <-again:
		}
	}
}

// fileOnce follows a file as long as its directory stays what it is, and calls
// changed with each change. nil if it is to be called again; FailedPrecondition,
// NotFound and PermissionDenied if there is nothing to follow before the sandbox
// changes.
func (f *follower) fileOnce(ctx context.Context, sub *subscription, begun, changed func()) error {
	sb, err := f.s.find(ctx, sub.sandbox)
	if err != nil {
		return err
	}
	if !awake(sb) {
		return errs.New(errs.FailedPrecondition, "sandbox %s does not run", sb.ID)
	}
	dir, err := f.nearest(ctx, sb.GetID(), sub.file)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := f.s.files.Watch(ctx, &sandbox.WatchFilesRequest{Sandbox: sb.GetID(), Path: dir})
	if err != nil {
		return errs.New(errs.Unavailable, "%w", err)
	}
	defer st.Close()
	wg.Go(func() { f.untilAsleep(ctx, sub, cancel) })
	below := strings.Trim(strings.TrimPrefix(sub.file, dir), "/") // "": the directory itself
	next, _, deeper := strings.Cut(below, "/")
	for {
		m, err := st.Recv()
		switch {
		case err != nil:
			return errs.New(errs.Unavailable, "%w", err) // the directory or the sandbox is gone
		case m.Started != nil:
			if now, err := f.nearest(ctx, sb.GetID(), sub.file); err != nil || now != dir {
				return err // it was made in between
			}
			begun()
		case m.Change == sandbox.FileChangeMissed, below == "":
			changed()
		case m.Path != next:
		case m.Change == sandbox.FileChangeCreated || m.Change == sandbox.FileChangeRemoved:
			if !deeper {
				changed()
			}
			return nil // there may be another directory to watch
		case !deeper:
			changed()
		}
	}
}

// untilAsleep calls asleep when the sandbox of a subscription pauses or ends, and
// returns then or when ctx ends.
func (f *follower) untilAsleep(ctx context.Context, sub *subscription, asleep func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-sub.moved:
		}
		if sb, err := f.s.find(ctx, sub.sandbox); err != nil || !awake(sb) {
			asleep()
			return
		}
	}
}

// nearest returns the directory in which changes of a file are seen: itself if
// it is one, else the last of its path that exists.
func (f *follower) nearest(ctx context.Context, sid id.Sandbox, file string) (string, error) {
	for dir := file; ; dir = path.Dir(dir) {
		info, err := f.s.files.Stat(ctx, &sandbox.FileRequest{Sandbox: sid, Path: dir})
		switch {
		case err == nil && info.Type == sandbox.FileTypeDirectory, err == nil && info.Type == sandbox.FileTypeSymlink && dir != file, dir == "/":
			return dir, nil
		case err != nil && !errs.Is(err, errs.NotFound) && !errs.Is(err, errs.InvalidArgument) && !errs.Is(err, errs.FailedPrecondition):
			return "", errs.New(errs.Unavailable, "%w", err)
		}
	}
}
