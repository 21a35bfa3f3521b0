package mcpserver

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/sqlitestore"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/testsupport/wait"
)

// guest is the files of a sandbox: a directory of this machine. The test says
// what changes in it.
type guest struct {
	sandbox.FilesClient
	root    string
	watches chan *guestWatch // that were begun
}

type guestWatch struct {
	rpc.ClientStream[rpc.None, sandbox.FileEvent]
	ctx    context.Context
	path   string
	events chan *sandbox.FileEvent // closed: the directory is gone
}

func (g *guest) info(name string, i fs.FileInfo) sandbox.FileInfo {
	out := sandbox.FileInfo{Name: name, Type: sandbox.FileTypeFile, SizeBytes: i.Size()}
	if i.IsDir() {
		out.Type = sandbox.FileTypeDirectory
	}
	return out
}

func (g *guest) Stat(_ context.Context, req *sandbox.FileRequest) (*sandbox.FileInfo, error) {
	i, err := os.Lstat(filepath.Join(g.root, req.Path))
	if err != nil {
		return nil, errs.New(errs.NotFound, "%w", err)
	}
	out := g.info(i.Name(), i)
	return &out, nil
}

func (g *guest) List(_ context.Context, req *sandbox.ListFilesRequest) (*sandbox.ListFilesResponse, error) {
	all, err := os.ReadDir(filepath.Join(g.root, req.Path))
	if err != nil {
		return nil, errs.New(errs.NotFound, "%w", err)
	}
	out := &sandbox.ListFilesResponse{}
	for _, e := range all {
		if i, err := e.Info(); err == nil && e.Name() > req.After {
			out.Files = append(out.Files, g.info(e.Name(), i))
		}
	}
	return out, nil
}

func (g *guest) Watch(ctx context.Context, req *sandbox.WatchFilesRequest) (rpc.ClientStream[rpc.None, sandbox.FileEvent], error) {
	w := &guestWatch{ctx: ctx, path: req.Path, events: make(chan *sandbox.FileEvent, 10)}
	w.events <- &sandbox.FileEvent{Started: new(true)}
	g.watches <- w
	return w, nil
}

func (w *guestWatch) Recv() (*sandbox.FileEvent, error) {
	select {
	case e, ok := <-w.events:
		if !ok {
			return nil, errs.New(errs.NotFound, "the directory is gone")
		}
		return e, nil
	case <-w.ctx.Done():
		return nil, errs.New(errs.Canceled, "the watch was closed")
	}
}

func (w *guestWatch) Close() error { return nil }

func (w *guestWatch) say(change sandbox.FileChange, path string) {
	w.events <- &sandbox.FileEvent{Change: change, Path: path}
}

// followEnv is a session with a store, and a client that is told of changes.
type followEnv struct {
	t     *testing.T
	s     *session
	store entity.Store
	guest *guest
	cs    *sdk.ClientSession
	box   *sandbox.Sandbox
	told  chan string
	lists chan struct{} // the list of resources has changed
}

func newFollowEnv(t *testing.T, versions ...string) *followEnv {
	t.Helper()
	store, err := sqlitestore.Open(t.Context(), sqlitestore.Config{Path: filepath.Join(t.TempDir(), "db"), Kinds: api.Kinds()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	e := &followEnv{t: t, store: store, told: make(chan string, 100), lists: make(chan struct{}, 100)}
	p := core.NewProject()
	p.Name = "default"
	if err := entity.Create(t.Context(), store, p); err != nil {
		t.Fatal(err)
	}
	e.box = sandbox.NewSandbox()
	e.box.Project, e.box.Name, e.box.Spec.Template.Image = p.ID, "box", "img"
	e.box.Status.Phase, e.box.Status.Ready = sandbox.SandboxPhaseRunning, true
	if err := entity.Create(t.Context(), store, e.box); err != nil {
		t.Fatal(err)
	}
	if e.s, err = newSession(Options{Client: away{}, versions: versions}); err != nil {
		t.Fatal(err)
	}
	e.guest = &guest{root: t.TempDir(), watches: make(chan *guestWatch, 10)}
	e.s.store, e.s.files, e.s.Keep = store, e.guest, true
	near, far := sdk.NewInMemoryTransports()
	if _, err := e.s.server.Connect(t.Context(), far, nil); err != nil {
		t.Fatal(err)
	}
	e.cs, err = sdk.NewClient(&sdk.Implementation{Name: "test"}, &sdk.ClientOptions{
		ResourceUpdatedHandler:     func(_ context.Context, req *sdk.ResourceUpdatedNotificationRequest) { e.told <- req.Params.URI },
		ResourceListChangedHandler: func(context.Context, *sdk.ResourceListChangedRequest) { e.lists <- struct{}{} },
	}).Connect(t.Context(), near, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = e.cs.Close()
		if err := e.s.close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return e
}

func (e *followEnv) set(phase sandbox.SandboxPhase) {
	e.t.Helper()
	if _, err := entity.ModifyStatus(e.t.Context(), e.store, e.box.ID, func(sb *sandbox.Sandbox) error {
		sb.Status.Phase = phase
		return nil
	}); err != nil {
		e.t.Fatal(err)
	}
}

func (e *followEnv) write(name string) {
	e.t.Helper()
	name = filepath.Join(e.guest.root, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		e.t.Fatal(err)
	}
	if err := os.WriteFile(name, nil, 0o644); err != nil {
		e.t.Fatal(err)
	}
}

func (e *followEnv) subscribe(uri string) {
	e.t.Helper()
	if err := e.cs.Subscribe(e.t.Context(), &sdk.SubscribeParams{URI: uri}); err != nil {
		e.t.Fatal(err)
	}
}

// watch waits for a watch of a directory.
func (e *followEnv) watch(path string) *guestWatch {
	e.t.Helper()
	w := wait.Receive(e.t, "a watch of "+path, e.guest.watches)
	if w.path != path {
		e.t.Fatalf("a watch of %s, want %s", w.path, path)
	}
	return w
}

func (e *followEnv) tells(what, uri string) {
	e.t.Helper()
	if got := wait.Receive(e.t, what, e.told); got != uri {
		e.t.Errorf("%s: told of %s, want %s", what, got, uri)
	}
}

// TestFileSubscription: a client is told of changes of a file, which is made,
// replaced and removed with its directories, in a sandbox that is paused.
func TestFileSubscription(t *testing.T) {
	t.Run("latest version", func(t *testing.T) { testFileSubscription(t, newFollowEnv(t)) })
	t.Run("versions by HTTP", func(t *testing.T) { testFileSubscription(t, newFollowEnv(t, httpVersions...)) })
}

// TestFileSubscriptionsAreBounded: each is a watch in a sandbox.
func TestFileSubscriptionsAreBounded(t *testing.T) {
	e := newFollowEnv(t, httpVersions...) // later ones do not answer
	for i := range maxFileSubscriptions + 1 {
		err := e.cs.Subscribe(t.Context(), &sdk.SubscribeParams{URI: listURI + "none/files/" + string(rune('a'+i))})
		if (err == nil) != (i < maxFileSubscriptions) {
			t.Errorf("subscription %d: %v", i+1, err)
		}
	}
}

func testFileSubscription(t *testing.T, e *followEnv) {
	uri := listURI + "box/files/data/in.csv"
	e.subscribe(uri)
	w := e.watch("/") // the nearest directory
	w.say(sandbox.FileChangeCreated, "other")
	e.write("data/in.csv")
	w.say(sandbox.FileChangeCreated, "data")
	e.tells("the file is made with its directory", uri)
	w = e.watch("/data")
	w.say(sandbox.FileChangeWritten, "other.csv")
	w.say(sandbox.FileChangeWritten, "in.csv")
	e.tells("the file is written", uri)
	w.say(sandbox.FileChangeMissed, "")
	e.tells("changes that are not known", uri)
	w.say(sandbox.FileChangeRemoved, "in.csv")
	e.tells("the file is removed", uri)
	w = e.watch("/data")
	// A paused sandbox is not resumed for it.
	e.set(sandbox.SandboxPhasePaused)
	e.tells("the sandbox is paused", uri)
	wait.Receive(t, "the end of the watch", w.ctx.Done())
	if len(e.guest.watches) > 0 {
		t.Errorf("%+v", <-e.guest.watches)
	}
	e.set(sandbox.SandboxPhaseRunning)
	w = e.watch("/data")
	e.tells("the sandbox is resumed", uri)
	close(w.events)
	e.tells("the directory is removed", uri)
	w = e.watch("/data")
	if err := e.cs.Unsubscribe(t.Context(), &sdk.UnsubscribeParams{URI: uri}); err != nil {
		t.Fatal(err)
	}
	wait.Receive(t, "the end of the watch", w.ctx.Done())

	// Those of a directory are the changes in it.
	uri = listURI + string(e.box.ID) + "/files/data"
	e.subscribe(uri)
	w = e.watch("/data")
	w.say(sandbox.FileChangeCreated, "x")
	e.tells("a file in the directory", uri)
	if err := e.cs.Unsubscribe(t.Context(), &sdk.UnsubscribeParams{URI: uri}); err != nil {
		t.Fatal(err)
	}
	wait.Receive(t, "the end of the watch", w.ctx.Done())
	// The end of the session ends them.
	e.subscribe(uri)
	w = e.watch("/data")
	if err := e.s.close(t.Context()); err != nil {
		t.Error(err)
	}
	wait.Receive(t, "the end of the watch", w.ctx.Done())
}

// TestSandboxesOfTheSessionAreResources: a sandbox that the session makes is in
// the list of resources until it ends.
func TestSandboxesOfTheSessionAreResources(t *testing.T) {
	e := newFollowEnv(t)
	list := func() (uris []string) {
		t.Helper()
		for r, err := range e.cs.Resources(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			uris = append(uris, r.URI)
		}
		return uris
	}
	if got := list(); !slices.Equal(got, []string{listURI}) {
		t.Errorf("at first: %q", got)
	}
	if err := e.s.add(t.Context(), e.box.GetID()); err != nil {
		t.Fatal(err)
	}
	wait.Receive(t, "a change of the list", e.lists)
	if got := list(); !slices.Equal(got, []string{listURI, listURI + string(e.box.ID)}) {
		t.Errorf("with a sandbox: %q", got)
	}
	e.set(sandbox.SandboxPhaseStopped)
	wait.Receive(t, "a change of the list", e.lists)
	if got := list(); !slices.Equal(got, []string{listURI}) {
		t.Errorf("at the end: %q", got)
	}
}

// TestPathCompletion: paths are those of a sandbox that runs, a level at a time.
func TestPathCompletion(t *testing.T) {
	e := newFollowEnv(t)
	for _, f := range []string{"data/in.csv", "data/in/x", "data/out.csv", "date"} {
		e.write(f)
	}
	complete := func(typed string) []string {
		t.Helper()
		res, err := e.cs.Complete(t.Context(), &sdk.CompleteParams{
			Ref:      &sdk.CompleteReference{Type: "ref/resource", URI: listURI + "{sandbox}/files{+path}"},
			Argument: sdk.CompleteParamsArgument{Name: "path", Value: typed},
			Context:  &sdk.CompleteContext{Arguments: map[string]string{"sandbox": "box"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return res.Completion.Values
	}
	for typed, want := range map[string]string{
		"": "/data/ /date", "/da": "/data/ /date", "/data": "/data/", "/data/": "/data/in.csv /data/in/ /data/out.csv", "/data/in": "/data/in.csv /data/in/",
		"/data/in.csv": "/data/in.csv", "/none/": "", "data": "",
	} {
		if got := complete(typed); strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %q", typed, got, want)
		}
	}
	e.set(sandbox.SandboxPhasePaused)
	if got := complete("/"); len(got) != 0 {
		t.Errorf("of a paused sandbox: %q", got)
	}
}
