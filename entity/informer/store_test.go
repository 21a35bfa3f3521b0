package informer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/api/store"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// deadline of every wait of a test.
const deadline = 2 * time.Minute

// env is a store and a connection to it that can fail.
type env struct {
	*testing.T
	url     string // of the database
	store   *pgstore.Store
	project schema.ID
	cut     *cutter
	set     *informer.Set
	things  informer.Informer[thing, *thing]
	told    *told
}

// backends are the kinds of connection to a store.
var backends = map[string]func(*testing.T, *pgstore.Store) entity.Reader{
	"pgstore": func(_ *testing.T, s *pgstore.Store) entity.Reader { return s },
	"remote":  func(t *testing.T, s *pgstore.Store) entity.Reader { return newRemote(t, s).client },
}

// eachBackend runs a test over each backend, with a set that has seen the store.
func eachBackend(t *testing.T, cfg pgstore.Config, run func(*env)) {
	for name, reader := range backends {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, cfg)
			e.follow(reader(t, e.store))
			run(e)
		})
	}
}

func newEnv(t *testing.T, cfg pgstore.Config) *env {
	t.Helper()
	e := &env{T: t, url: pgtest.URL(t)}
	cfg.URL, cfg.Kinds = e.url, storetest.Kinds()
	e.store = pgtest.Open(t, cfg)
	p := new(storetest.Project)
	e.create(p)
	e.project = p.ID
	return e
}

// follow starts a set over r, which can be cut off, and waits until it has
// listed.
func (e *env) follow(r entity.Reader) {
	e.Helper()
	e.cut = &cutter{Reader: r}
	e.set = informer.New(informer.Config{Reader: e.cut})
	e.things = informer.Of[thing](e.set)
	e.things.AddIndex("color", func(o *thing) []string { return []string{o.Spec.Color} })
	e.told = tell(e.T, e.set, storetest.ThingKind)
	start(e.T, e.set)
	ctx, cancel := context.WithTimeout(e.Context(), deadline)
	defer cancel()
	if err := e.set.WaitSynced(ctx); err != nil {
		e.Fatal(err)
	}
}

func (e *env) create(o schema.Object) {
	e.Helper()
	if err := entity.Create(e.Context(), e.store, o); err != nil {
		e.Fatal(err)
	}
}

func (e *env) thing(color string) *thing {
	e.Helper()
	o := &thing{Meta: schema.Meta{Project: e.project}, Spec: storetest.ThingSpec{Color: color}}
	e.create(o)
	return o
}

func (e *env) delete(o *thing) {
	e.Helper()
	if err := entity.Delete(e.Context(), e.store, o); err != nil {
		e.Fatal(err)
	}
}

// same waits until the Set has seen every write so far, and compares its state,
// and the calls of a handler, with the store.
func (e *env) same() {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.Context(), deadline)
	defer cancel()
	if _, err := e.set.WaitRevision(ctx, e.thing("last").Revision); err != nil {
		e.Fatal(err)
	}
	want, _, err := entity.List[thing](ctx, e.store, entity.Query{})
	if err != nil {
		e.Fatal(err)
	}
	got := e.things.List()
	if len(got) != len(want) {
		e.Fatalf("the set has %d, the store %d", len(got), len(want))
	}
	colors := map[string]int{}
	e.told.mu.Lock()
	defer e.told.mu.Unlock()
	for i, o := range want {
		if got[i].ID != o.ID || got[i].Revision != o.Revision {
			e.Fatalf("the set has %v, the store %v", got[i].Meta, o.Meta)
		}
		if e.told.objects[o.ID] != schema.Object(got[i]) {
			e.Errorf("a handler was last told %v of %s, the set has %v", e.told.objects[o.ID], o.ID, got[i])
		}
		colors[o.Spec.Color]++
	}
	if len(e.told.objects) != len(want) {
		e.Errorf("a handler knows %d, the store has %d", len(e.told.objects), len(want))
	}
	for color, n := range colors {
		if have := len(e.things.ByIndex("color", color)); have != n {
			e.Errorf("index %s has %d, want %d", color, have, n)
		}
	}
}

// cutter is a Reader whose connection can be cut, once or at random.
type cutter struct {
	entity.Reader
	mu     sync.Mutex
	off    chan struct{} // closed: cut off; nil: not
	random atomic.Bool
	cuts   atomic.Int64
}

var errCut = errs.New(errs.Unavailable, "cut off")

// set cuts the connection off, or restores it.
func (c *cutter) set(off bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.off == nil {
		c.off = make(chan struct{})
	}
	if off {
		close(c.off)
	} else {
		c.off = nil
	}
}

func (c *cutter) state() (off chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.off == nil {
		c.off = make(chan struct{})
	}
	select {
	case <-c.off:
		err = errCut
	default:
	}
	if c.random.Load() && rand.N(3) == 0 {
		c.cuts.Add(1)
		err = errs.New(errs.ResourceExhausted, "cut at random")
	}
	return c.off, err
}

func (c *cutter) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	if _, err := c.state(); err != nil {
		return entity.Page{}, err
	}
	return c.Reader.List(ctx, q)
}

func (c *cutter) Watch(ctx context.Context, q entity.WatchQuery) (entity.Watch, error) {
	if _, err := c.state(); err != nil {
		return nil, err
	}
	w, err := c.Reader.Watch(ctx, q)
	return &cutWatch{w, c}, err
}

type cutWatch struct {
	entity.Watch
	c *cutter
}

func (w *cutWatch) Next(ctx context.Context) ([]entity.Event, error) {
	off, _ := w.c.state()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-off:
			cancel()
		case <-ctx.Done():
		}
	}()
	events, err := w.Watch.Next(ctx)
	if _, cerr := w.c.state(); cerr != nil {
		return nil, cerr // and the events that came are lost
	}
	return events, err
}

// remoteStore is a store behind a socket, whose server can go away.
type remoteStore struct {
	t      *testing.T
	store  entity.Store
	path   string
	client entity.Reader
	stop   func()
}

func newRemote(t *testing.T, s entity.Store) *remoteStore {
	t.Helper()
	r := &remoteStore{t: t, store: s, path: filepath.Join(t.TempDir(), "s")}
	r.start()
	cl, err := rpc.NewClient("unix://"+r.path, rpc.ClientOptions{RetryFor: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	t.Cleanup(func() { r.stop() })
	r.client = remote.New(cl)
	return r
}

func (r *remoteStore) start() {
	r.t.Helper()
	srv, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	store.RegisterEntities(srv, remote.NewServer(r.store, storetest.Kinds()))
	l, err := net.Listen("unix", r.path)
	if err != nil {
		r.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	r.stop = sync.OnceFunc(func() {
		srv.Close()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
}

func TestFollowsAStore(t *testing.T) {
	eachBackend(t, pgstore.Config{}, func(e *env) {
		a := e.thing("red")
		e.same()
		a.Spec.Color = "blue"
		if err := entity.UpdateSpec(e.Context(), e.store, a); err != nil {
			e.Fatal(err)
		}
		if _, err := e.set.WaitRevision(e.Context(), a.Revision); err != nil {
			e.Fatal(err)
		}
		if got := e.things.Get(a.ID); got == nil || got.Spec.Color != "blue" {
			e.Errorf("own write: %+v", got)
		}
		e.same()
		e.delete(a)
		e.same()
	})
}

// TestConverges: under random cuts, writers, epochs and a small ring, the Set
// and its handlers end up in the store's state.
func TestConverges(t *testing.T) {
	eachBackend(t, pgstore.Config{RingEvents: 16}, func(e *env) {
		e.cut.random.Store(true)
		e.write(8, 60, func(n int) {
			if n%20 == 10 {
				if err := e.store.NewEpoch(e.Context()); err != nil {
					e.Error(err)
				}
			}
		})
		e.cut.random.Store(false)
		e.same()
		e.Logf("%d cuts", e.cut.cuts.Load())
	})
}

// write has writers create, change and delete things; each is called n times,
// and between is called before each call of the first.
func (e *env) write(writers, n int, between func(n int)) {
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			var mine []*thing
			for n := range n {
				if i == 0 && between != nil {
					between(n)
				}
				var err error
				switch k := rnd.IntN(10); {
				case len(mine) == 0 || k < 4:
					o := &thing{Meta: schema.Meta{Project: e.project}, Spec: storetest.ThingSpec{Color: fmt.Sprint(n % 3)}}
					if err = entity.Create(e.Context(), e.store, o); err == nil {
						mine = append(mine, o)
					}
				case k < 8:
					o := mine[rnd.IntN(len(mine))]
					o.Spec.Color = fmt.Sprint(rnd.IntN(3))
					err = entity.UpdateSpec(e.Context(), e.store, o)
				default:
					j := rnd.IntN(len(mine))
					if err = entity.Delete(e.Context(), e.store, mine[j]); err == nil {
						mine = slices.Delete(mine, j, j+1)
					}
				}
				if err != nil {
					e.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestEpochRemovesWhatIsGone: an epoch that began while the Set was cut off
// makes it list again, and vanished entities are delivered with their last
// object.
func TestEpochRemovesWhatIsGone(t *testing.T) {
	eachBackend(t, pgstore.Config{}, func(e *env) {
		gone := e.thing("red")
		e.same()
		e.told.take()
		e.cut.set(true)
		e.delete(gone)
		if err := e.store.NewEpoch(e.Context()); err != nil {
			e.Fatal(err)
		}
		e.cut.set(false)
		e.same()
		if log := e.told.take(); !slices.Contains(split(log), "gone "+string(gone.ID)+" red") {
			e.Errorf("told %s", log)
		}
	})
}

// TestCompactedLog: a set that was cut off until its position was compacted
// lists again.
func TestCompactedLog(t *testing.T) {
	eachBackend(t, pgstore.Config{RingEvents: 16}, func(e *env) {
		gone := e.thing("red")
		e.same()
		lists := e.set.Status().Interruptions
		e.cut.set(true)
		e.delete(gone)
		const partition = 65536 // revisions of a partition of the log
		e.sql(fmt.Sprintf("update runtime.store set revision = revision + %d", 3*partition))
		if err := e.store.Compact(e.Context(), time.Hour, 1); err != nil { // makes a partition for later writes
			e.Fatal(err)
		}
		for range 50 { // more changes than the ring holds
			e.thing("blue")
		}
		if err := e.store.Compact(e.Context(), 0, 1); err != nil {
			e.Fatal(err)
		}
		// The store serves the position from its ring until its tailer has read every write.
		wait.For(e, "the position is compacted", func() bool {
			w, err := e.store.Watch(e.Context(), entity.WatchQuery{From: e.set.Position()})
			if err == nil {
				w.Close()
			}
			return errs.Is(err, errs.Compacted)
		})
		e.cut.set(false)
		e.same()
		if n := e.set.Status().Interruptions - lists; n < 2 {
			e.Errorf("%d interruptions", n)
		}
	})
}

func (e *env) sql(stmt string) {
	e.Helper()
	c, err := pgx.Connect(e.Context(), e.url)
	if err != nil {
		e.Fatal(err)
	}
	defer c.Close(context.Background())
	if _, err := c.Exec(e.Context(), stmt); err != nil {
		e.Fatal(err)
	}
}

// TestSlowHandlerSkipsNothing: while a handler does not return, more is written
// than the store's ring holds. The handler then gets every state, and the
// position stays behind it.
func TestSlowHandlerSkipsNothing(t *testing.T) {
	eachBackend(t, pgstore.Config{RingEvents: 16}, func(e *env) {
		e.same()
		entered, leave := make(chan struct{}), make(chan struct{})
		var once sync.Once
		var got atomic.Int64
		remove := e.things.Handle(func(c informer.Change[*thing]) {
			if c.New != nil && c.New.Spec.Color == "stop" {
				once.Do(func() { close(entered); <-leave })
			}
			if c.Old == nil && c.New.Spec.Color == "counted" {
				got.Add(1)
			}
		})
		defer remove()
		e.thing("stop")
		<-entered
		before := e.set.Position()
		for range 200 {
			e.thing("counted")
		}
		if at := e.set.Position(); at != before {
			e.Errorf("the position went from %v to %v while a handler was busy", before, at)
		}
		close(leave)
		e.same()
		if n := got.Load(); n != 200 {
			e.Errorf("the handler was told %d of 200", n)
		}
	})
}

// TestHandlerAddedUnderLoad: a handler that is added while entities change gets
// each once, then every change.
func TestHandlerAddedUnderLoad(t *testing.T) {
	eachBackend(t, pgstore.Config{}, func(e *env) {
		var all []*told
		e.write(4, 50, func(int) { all = append(all, tell(e.T, e.set, storetest.ThingKind)) })
		e.same()
		for _, r := range all {
			r.mu.Lock()
			if len(r.objects) != e.things.Len() {
				e.Errorf("a handler knows %d of %d", len(r.objects), e.things.Len())
			}
			r.mu.Unlock()
		}
	})
}

// TestServerRestart: the server of a remote store stops and restarts; the Set
// resumes.
func TestServerRestart(t *testing.T) {
	e := newEnv(t, pgstore.Config{})
	r := newRemote(t, e.store)
	e.follow(r.client)
	for range 3 {
		a := e.thing("red")
		e.same()
		r.stop()
		if got := e.things.Get(a.ID); got == nil {
			t.Error("an entity is gone with the server")
		}
		e.delete(a)
		e.thing("blue")
		r.start()
		e.same()
	}
}

// TestDatabaseKilled: PostgreSQL is killed and restarted under the Set.
func TestDatabaseKilled(t *testing.T) {
	server := pgtest.Server(t)
	ctx, cancel := context.WithCancel(context.Background())
	supervised := make(chan error, 1)
	go func() { supervised <- server.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-supervised })
	e := &env{T: t, url: server.URL()}
	e.store = pgtest.Open(t, pgstore.Config{URL: e.url, Kinds: storetest.Kinds(), RetryFor: deadline})
	p := new(storetest.Project)
	e.create(p)
	e.project = p.ID
	e.follow(e.store)
	a := e.thing("red")
	e.same()
	if err := syscall.Kill(server.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e.thing("blue") // waits until it is back
	if e.things.Get(a.ID) == nil {
		t.Error("an entity is gone with the database")
	}
	e.same()
}
