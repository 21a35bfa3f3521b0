package e2b

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"io/fs"
	"maps"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

// entry describes a file.
type entry struct {
	Name          string            `json:"name"`
	Type          string            `json:"type"`
	Path          string            `json:"path"`
	Size          int64             `json:"size,string"`
	Mode          int64             `json:"mode"`
	Permissions   string            `json:"permissions"`
	Owner         string            `json:"owner"`
	Group         string            `json:"group"`
	ModifiedTime  time.Time         `json:"modifiedTime"`
	SymlinkTarget *string           `json:"symlinkTarget,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
}

type entryAnswer struct {
	Entry entry `json:"entry"`
}

var fileTypes = map[sandbox.FileType]string{
	sandbox.FileTypeFile: "FILE_TYPE_FILE", sandbox.FileTypeDirectory: "FILE_TYPE_DIRECTORY", sandbox.FileTypeSymlink: "FILE_TYPE_SYMLINK",
	sandbox.FileTypeOther: "FILE_TYPE_UNSPECIFIED",
}

var modeBits = map[sandbox.FileType]fs.FileMode{
	sandbox.FileTypeDirectory: fs.ModeDir, sandbox.FileTypeSymlink: fs.ModeSymlink, sandbox.FileTypeOther: fs.ModeIrregular,
}

func (s *Server) entry(ctx context.Context, g *guest, dir string, i *sandbox.FileInfo) entry {
	o := s.owners.of(ctx, g)
	e := entry{
		Name: i.Name, Type: fileTypes[i.Type], Path: path.Join(dir, i.Name), Size: i.SizeBytes, Mode: i.Mode & 0o777,
		Permissions: (fs.FileMode(i.Mode&0o777) | modeBits[i.Type]).String(), Owner: o.user(i.UID), Group: o.group(i.GID), ModifiedTime: i.ModifiedAt,
		Metadata: fileMetadata(i.Attributes),
	}
	if i.Type == sandbox.FileTypeSymlink {
		e.SymlinkTarget = &i.Target
	}
	return e
}

type pathRequest struct {
	Path      string `json:"path"`
	Depth     int    `json:"depth"`
	Recursive bool   `json:"recursive"`
}

func (g *guest) fileRequest(p string) *sandbox.FileRequest {
	return &sandbox.FileRequest{Sandbox: g.sb.GetID(), Path: p, User: g.user}
}

func (s *Server) describeFile(ctx context.Context, g *guest, p string) (*entryAnswer, error) {
	i, err := g.files.Stat(ctx, g.fileRequest(p))
	if err != nil {
		return nil, err
	}
	if i.Attributes, err = g.attributes(ctx, p, i.Type); err != nil {
		return nil, err
	}
	return &entryAnswer{s.entry(ctx, g, path.Dir(p), i)}, nil
}

func (s *Server) stat(ctx context.Context, g *guest, q *pathRequest) (*entryAnswer, error) {
	return s.describeFile(ctx, g, g.path(q.Path))
}

// maxListed bounds the entries of one listing.
const maxListed = 100_000

func (s *Server) listDir(ctx context.Context, g *guest, q *pathRequest) (any, error) {
	entries := []entry{}
	var walk func(dir string, depth int) error
	yes := true
	walk = func(dir string, depth int) error {
		req := &sandbox.ListFilesRequest{Sandbox: g.sb.GetID(), Path: dir, User: g.user, Attributes: &yes}
		for {
			page, err := g.files.List(ctx, req)
			if err != nil {
				return err
			}
			for i := range page.Files {
				f := &page.Files[i]
				if entries = append(entries, s.entry(ctx, g, dir, f)); len(entries) > maxListed {
					return errs.New(errs.ResourceExhausted, "%s has more than %d files: list a part of it, or with less depth", q.Path, maxListed)
				}
				if f.Type == sandbox.FileTypeDirectory && depth > 1 {
					if err := walk(path.Join(dir, f.Name), depth-1); err != nil {
						return err
					}
				}
			}
			if !page.More || len(page.Files) == 0 {
				return nil
			}
			req.After = page.Files[len(page.Files)-1].Name
		}
	}
	if err := walk(g.path(q.Path), max(1, q.Depth)); err != nil {
		return nil, err
	}
	return map[string]any{"entries": entries}, nil
}

// makeDir makes a directory and those above it; AlreadyExists if it exists.
func (s *Server) makeDir(ctx context.Context, g *guest, q *pathRequest) (*entryAnswer, error) {
	p := g.path(q.Path)
	if i, err := g.files.Stat(ctx, g.fileRequest(p)); err == nil {
		if i.Type == sandbox.FileTypeDirectory {
			return nil, errs.New(errs.AlreadyExists, "directory %s exists", p)
		}
		return nil, errs.New(errs.InvalidArgument, "%s exists and is no directory", p)
	} else if !errs.Is(err, errs.NotFound) {
		return nil, err
	}
	yes := true
	if err := g.files.MakeDirectory(ctx, &sandbox.MakeDirectoryRequest{Sandbox: g.sb.GetID(), Path: p, User: g.user, Parents: &yes}); err != nil {
		return nil, err
	}
	return s.describeFile(ctx, g, p)
}

func (s *Server) move(ctx context.Context, g *guest, q *struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}) (*entryAnswer, error) {
	yes, to := true, g.path(q.Destination)
	err := g.files.Move(ctx, &sandbox.MoveFileRequest{Sandbox: g.sb.GetID(), Path: g.path(q.Source), To: to, User: g.user, Replace: &yes})
	if err != nil {
		return nil, err
	}
	return s.describeFile(ctx, g, to)
}

// remove removes a file or directory; it succeeds if there is none.
func (s *Server) remove(ctx context.Context, g *guest, q *pathRequest) (any, error) {
	yes := true
	err := g.files.Remove(ctx, &sandbox.RemoveFileRequest{Sandbox: g.sb.GetID(), Path: g.path(q.Path), User: g.user, Recursive: &yes})
	if errs.Is(err, errs.NotFound) {
		err = nil
	}
	return struct{}{}, err
}

// owners has the names of users and groups of sandboxes, as their files say when
// they are first asked for.
type owners struct {
	mu    sync.Mutex
	known map[id.Sandbox]*names
}

type names struct{ users, groups map[string]string }

func (n *names) user(number int64) string  { return nameOf(n.users, number) }
func (n *names) group(number int64) string { return nameOf(n.groups, number) }

func nameOf(names map[string]string, number int64) string {
	s := strconv.FormatInt(number, 10)
	if name, ok := names[s]; ok {
		return name
	}
	return s
}

// Bounds of what is kept and read.
const (
	maxOwners    = 1000
	maxNamesFile = 256 << 10
)

func (o *owners) of(ctx context.Context, g *guest) *names {
	o.mu.Lock()
	n := o.known[g.sb.GetID()]
	o.mu.Unlock()
	if n != nil {
		return n
	}
	n = &names{g.readNames(ctx, "/etc/passwd"), g.readNames(ctx, "/etc/group")}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known == nil || len(o.known) >= maxOwners {
		o.known = map[id.Sandbox]*names{}
	}
	o.known[g.sb.GetID()] = n
	return n
}

// readNames reads names by number. What cannot be read has no names.
func (g *guest) readNames(ctx context.Context, file string) map[string]string {
	names := map[string]string{}
	length := int64(maxNamesFile)
	st, err := g.files.Read(ctx, &sandbox.ReadFileRequest{Sandbox: g.sb.GetID(), Path: file, Length: &length})
	if err != nil {
		return names
	}
	defer st.Close()
	var b bytes.Buffer
	for {
		m, err := st.Recv()
		if err != nil {
			break
		}
		b.Write(m.Data)
	}
	for sc := bufio.NewScanner(&b); sc.Scan(); {
		if f := strings.Split(sc.Text(), ":"); len(f) > 2 {
			names[f[2]] = f[0]
		}
	}
	return names
}

// fileEvent is a change below a watched directory.
type fileEvent struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

var eventTypes = map[sandbox.FileChange]string{
	sandbox.FileChangeCreated: "EVENT_TYPE_CREATE", sandbox.FileChangeWritten: "EVENT_TYPE_WRITE", sandbox.FileChangeRemoved: "EVENT_TYPE_REMOVE",
	sandbox.FileChangeAttributes: "EVENT_TYPE_CHMOD",
}

// watch calls begun when the watch works, and then event with each change.
func (g *guest) watch(ctx context.Context, q *pathRequest, begun func() error, event func(fileEvent) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := g.files.Watch(ctx, &sandbox.WatchFilesRequest{Sandbox: g.sb.GetID(), Path: g.path(q.Path), User: g.user, Recursive: &q.Recursive})
	if err != nil {
		return err
	}
	defer st.Close()
	for {
		m, err := st.Recv()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case m.Started != nil:
			err = begun()
		case m.Change == sandbox.FileChangeMissed:
			err = errs.New(errs.ResourceExhausted, "there were more changes in %s than could be kept: list it, and watch again", q.Path)
		default:
			err = event(fileEvent{m.Path, eventTypes[m.Change]})
		}
		if err != nil {
			return err
		}
	}
}

func (s *Server) watchDir(ctx context.Context, g *guest, q *pathRequest, a *answers) error {
	if a.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, a.timeout, errWatchTime)
		defer cancel()
	}
	var mu sync.Mutex // of a
	send := func(v any) error {
		mu.Lock()
		defer mu.Unlock()
		return a.send(v)
	}
	if a.ping > 0 {
		done := make(chan struct{})
		var wg sync.WaitGroup
		defer wg.Wait()
		defer close(done)
		wg.Go(func() {
			t := time.NewTicker(a.ping)
			defer t.Stop()
			for {
				select {
				case <-done:
					return
				case <-t.C:
					_ = send(map[string]any{"keepalive": struct{}{}}) // the watch ends with its client
				}
			}
		})
	}
	err := g.watch(ctx, q, func() error { return send(map[string]any{"start": struct{}{}}) },
		func(e fileEvent) error { return send(map[string]any{"filesystem": e}) })
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

var errWatchTime = errs.New(errs.DeadlineExceeded, "the time of the watch is over")

// watchers are watches whose events clients fetch.
type watchers struct {
	mu   sync.Mutex
	live map[string]*watcher
}

type watcher struct {
	sandbox id.Sandbox
	cancel  context.CancelFunc
	ended   chan struct{} // closed when the watch has ended

	mu     sync.Mutex
	events []fileEvent
	bytes  int // of the paths of events
	failed error
}

// Bounds of watchers.
const (
	maxWatchers   = 1000
	maxWatchersOf = 100 // of a sandbox
	maxEvents     = 10_000
	maxEventBytes = 1 << 20 // of the paths of the events of a watcher
)

// add adds a watcher, in the place of those whose watch has ended if there are too many. ResourceExhausted
// if there is no room.
func (t *watchers) add(name string, v *watcher) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.countLocked(v.sandbox)
	if full := len(t.live) >= maxWatchers; full || of >= maxWatchersOf {
		maps.DeleteFunc(t.live, func(_ string, w *watcher) bool { return (full || w.sandbox == v.sandbox) && w.hasEnded() })
		of = t.countLocked(v.sandbox)
	}
	if len(t.live) >= maxWatchers || of >= maxWatchersOf {
		return errs.New(errs.ResourceExhausted, "there are %d watchers already, %d of this sandbox: remove some", len(t.live), of)
	}
	if t.live == nil {
		t.live = map[string]*watcher{}
	}
	t.live[name] = v
	return nil
}

// countLocked returns the number of watchers of a sandbox. mu is held.
func (t *watchers) countLocked(sid id.Sandbox) (n int) {
	for _, w := range t.live {
		if w.sandbox == sid {
			n++
		}
	}
	return n
}

func (v *watcher) hasEnded() bool {
	select {
	case <-v.ended:
		return true
	default:
		return false
	}
}

func (s *Server) createWatcher(ctx context.Context, g *guest, q *pathRequest) (any, error) {
	base, cancel := context.WithCancel(s.ctx)
	stop := context.AfterFunc(ctx, cancel)
	v := &watcher{sandbox: g.sb.GetID(), cancel: cancel, ended: make(chan struct{})}
	begun := make(chan struct{})
	s.running.Go(func() {
		defer close(v.ended)
		err := g.watch(base, q, func() error { close(begun); return nil }, v.add)
		v.mu.Lock()
		defer v.mu.Unlock()
		v.failed = err
	})
	select {
	case <-begun:
	case <-v.ended:
		cancel()
		if v.failed == nil {
			v.failed = errs.New(errs.Unavailable, "the watch ended")
		}
		return nil, v.failed
	}
	if !stop() {
		return nil, ctx.Err()
	}
	name := newWatcherID()
	if err := s.watchers.add(name, v); err != nil {
		cancel()
		return nil, err
	}
	return map[string]string{"watcherId": name}, nil
}

func (v *watcher) add(e fileEvent) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.events) == maxEvents || v.bytes+len(e.Name) > maxEventBytes {
		return errs.New(errs.ResourceExhausted, "%d changes were not fetched: list the directory, and watch again", len(v.events))
	}
	v.events, v.bytes = append(v.events, e), v.bytes+len(e.Name)
	return nil
}

type watcherRequest struct {
	WatcherID string `json:"watcherId"`
}

func (s *Server) watcher(g *guest, name string, remove bool) (*watcher, error) {
	s.watchers.mu.Lock()
	defer s.watchers.mu.Unlock()
	v := s.watchers.live[name]
	if v == nil || v.sandbox != g.sb.GetID() {
		return nil, errs.New(errs.NotFound, "there is no watcher %q", name)
	}
	if remove {
		delete(s.watchers.live, name)
	}
	return v, nil
}

func (s *Server) watcherEvents(_ context.Context, g *guest, q *watcherRequest) (any, error) {
	v, err := s.watcher(g, q.WatcherID, false)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.events) == 0 && v.failed != nil {
		return nil, v.failed
	}
	events := append([]fileEvent{}, v.events...)
	v.events, v.bytes = nil, 0
	return map[string]any{"events": events}, nil
}

func (s *Server) removeWatcher(_ context.Context, g *guest, q *watcherRequest) (any, error) {
	v, err := s.watcher(g, q.WatcherID, true)
	if err != nil {
		return nil, err
	}
	v.cancel()
	return struct{}{}, nil
}
