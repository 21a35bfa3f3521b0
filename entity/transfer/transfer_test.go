package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/etcdstore"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/entity/sqlitestore"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/entity/transfer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/etcdtest"
	"miren.dev/runtime/testsupport/pgtest"
)

// Variables of the environment of a child, which copies a store.
const (
	childFrom = "TRANSFER_TEST_FROM" // URL of the source
	childTo   = "TRANSFER_TEST_TO"
	childKill = "TRANSFER_TEST_KILL" // step and number of the item at which it kills itself
)

func TestMain(m *testing.M) {
	if from := os.Getenv(childFrom); from != "" {
		fmt.Fprintln(os.Stderr, child(from, os.Getenv(childTo), os.Getenv(childKill)))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// child copies a store, and kills itself on the way.
func child(fromURL, toURL, kill string) error {
	ctx := context.Background()
	from, err := offline(ctx, fromURL, false)
	if err != nil {
		return err
	}
	to, err := offline(ctx, toURL, true)
	if err != nil {
		return err
	}
	reads := 0
	_, err = transfer.Copy(ctx, killing{from, &reads, kill}, to, transfer.Options{Kinds: storetest.Kinds()})
	return errors.Join(err, errors.New("the copy was not killed"))
}

// killing is a source that kills the process at an item of its second reading, the
// one that is written.
type killing struct {
	transfer.Store
	reads *int
	at    string
}

func (k killing) Read(ctx context.Context, f func(transfer.Item) error) (schema.Revision, error) {
	*k.reads++
	n := 0
	return k.Store.Read(ctx, func(it transfer.Item) error {
		if n++; *k.reads == 2 && fmt.Sprint(n) == k.at {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return f(it)
	})
}

func offline(ctx context.Context, url string, create bool) (transfer.Store, error) {
	switch {
	case strings.HasPrefix(url, sqlitestore.Scheme):
		return sqlitestore.OpenOffline(ctx, strings.TrimPrefix(url, sqlitestore.Scheme), create)
	case strings.HasPrefix(url, etcdstore.Scheme):
		return etcdstore.OpenOffline(ctx, url, storetest.Kinds(), create)
	}
	return pgstore.OpenOffline(ctx, url, create)
}

// closer is a store that is open as a server opens it.
type closer interface {
	entity.Store
	Close()
}

func open(t *testing.T, url string) closer {
	t.Helper()
	s, err := tryOpen(t, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func tryOpen(t *testing.T, url string) (closer, error) {
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	switch {
	case strings.HasPrefix(url, sqlitestore.Scheme):
		return sqlitestore.Open(t.Context(), sqlitestore.Config{Path: strings.TrimPrefix(url, sqlitestore.Scheme), Kinds: storetest.Kinds(), Logger: log, MaxCascade: storetest.MaxCascade})
	case strings.HasPrefix(url, etcdstore.Scheme):
		return etcdstore.Open(t.Context(), etcdstore.Config{URL: url, Kinds: storetest.Kinds(), Logger: log, MaxCascade: storetest.MaxCascade})
	}
	return pgstore.Open(t.Context(), pgstore.Config{URL: url, Kinds: storetest.Kinds(), Logger: log, MaxCascade: storetest.MaxCascade})
}

// databases returns a function for each kind of database, which returns the URL of
// a new, empty one.
func databases(t *testing.T) map[string]func(t *testing.T) string {
	etcd := etcdtest.Start(t)
	return map[string]func(t *testing.T) string{
		"postgres": func(t *testing.T) string { return pgtest.URL(t) },
		"sqlite":   func(t *testing.T) string { return sqlitestore.Scheme + filepath.Join(t.TempDir(), "store.db") },
		"etcd":     func(t *testing.T) string { return etcd.URL(t) },
	}
}

// things is how many there are in a filled store.
const things = 300

// fill writes entities of every form through a server's store, and returns what it
// holds.
func fill(t *testing.T, url string) (recs []schema.Record, lease schema.LeaseID) {
	t.Helper()
	s, ctx := open(t, url), t.Context()
	defer s.Close()
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	project := &storetest.Project{Meta: schema.Meta{ID: "proj-p", Name: "p"}}
	node := &storetest.Node{Meta: schema.Meta{ID: "node-n", Name: "n"}}
	do(entity.Create(ctx, s, project))
	do(entity.Create(ctx, s, node))
	l, err := s.Grant(ctx, time.Hour)
	do(err)
	first := &storetest.Thing{
		Meta: schema.Meta{ID: "thing-first", Project: project.ID, Name: "first", Labels: map[string]string{"a": "b", "c": ""}},
		Spec: storetest.ThingSpec{Color: "red", Size: -1, Serial: "s-1", Global: "g-1", Tags: []string{"x", "y"}},
	}
	do(entity.Create(ctx, s, first))
	var ops []entity.Op
	for i := range things - 1 {
		o := &storetest.Thing{
			Meta: schema.Meta{ID: schema.ID(fmt.Sprintf("thing-%03d", i)), Project: project.ID},
			Spec: storetest.ThingSpec{Color: "blue", Size: int64(i), Needs: first.ID, Weight: []byte{0, 255, byte(i)}},
		}
		if i == 7 {
			o.Lease = l.ID
		}
		op, err := entity.CreateOp(o)
		do(err)
		if ops = append(ops, op); len(ops) == 20 || i == things-2 {
			_, err := s.Txn(ctx, entity.TxnRequest{Ops: ops})
			do(err)
			ops = nil
		}
	}
	first.Spec.Color = "green"
	do(entity.UpdateSpec(ctx, s, first))
	first.Status = storetest.ThingStatus{Phase: "busy", Node: node.ID, Count: 3}
	do(entity.UpdateStatus(ctx, s, first))
	gone := &storetest.Thing{Meta: schema.Meta{Project: project.ID, Name: "gone"}, Spec: storetest.ThingSpec{Color: "red"}}
	do(entity.Create(ctx, s, gone))
	do(entity.Delete(ctx, s, gone))
	return all(t, s), l.ID
}

// all returns every entity.
func all(t *testing.T, s entity.Store) []schema.Record {
	t.Helper()
	var recs []schema.Record
	for _, kind := range []string{"project", "node", "thing"} {
		page, err := s.List(t.Context(), entity.Query{Kind: kind})
		if err != nil {
			t.Fatal(err)
		}
		recs = append(recs, page.Records...)
	}
	return recs
}

// move copies a store to another one.
func move(t *testing.T, fromURL, toURL string) (*transfer.Result, error) {
	t.Helper()
	from, err := offline(t.Context(), fromURL, false)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := offline(t.Context(), toURL, true)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	return transfer.Copy(t.Context(), from, to, transfer.Options{Kinds: storetest.Kinds()})
}

// verify opens a store and checks that it holds recs and enforces what they say.
func verify(t *testing.T, url string, recs []schema.Record, lease schema.LeaseID) {
	t.Helper()
	s, ctx := open(t, url), t.Context()
	defer s.Close()
	if got := all(t, s); !reflect.DeepEqual(got, recs) {
		t.Fatalf("%d entities are not as they were in the source (%d)", len(got), len(recs))
	}
	page, err := s.List(ctx, entity.Query{Kind: "thing", Index: []entity.IndexMatch{{Attr: "status.phase", Op: entity.IndexEq, Value: []byte("busy")}}})
	if err != nil || len(page.Records) != 1 || page.Records[0].ID != "thing-first" {
		t.Errorf("the indexed thing: %v, %v", page.Records, err)
	}
	first, err := entity.Get[storetest.Thing](ctx, s, "thing-first")
	if err != nil {
		t.Fatal(err)
	}
	if err := entity.Delete(ctx, s, first); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("a thing that others need is deleted: %v", err)
	}
	for what, meta := range map[string]storetest.Thing{
		"name":  {Meta: schema.Meta{Name: "first", Project: "proj-p"}, Spec: storetest.ThingSpec{Color: "red"}},
		"value": {Meta: schema.Meta{Project: "proj-p"}, Spec: storetest.ThingSpec{Color: "red", Global: "g-1"}},
	} {
		if err := entity.Create(ctx, s, &meta); !errs.Is(err, errs.AlreadyExists) {
			t.Errorf("a second thing with the same %s: %v", what, err)
		}
	}
	if l, err := s.KeepAlive(ctx, lease); err != nil || l.TTL != time.Hour {
		t.Errorf("the lease: %+v, %v", l, err)
	}

	// A listing that began before a change shows what was before.
	const limit = 10
	page, err = s.List(ctx, entity.Query{Kind: "thing", Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Watch(ctx, entity.WatchQuery{Kinds: []string{"thing"}, From: page.Token})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	highest := slices.MaxFunc(recs, func(a, b schema.Record) int { return int(a.Revision - b.Revision) }).Revision
	before := first.Spec.Color
	first.Spec.Color = "yellow"
	if err := entity.UpdateSpec(ctx, s, first); err != nil || first.Revision <= highest {
		t.Fatalf("a change of an old thing has revision %d, not above %d: %v", first.Revision, highest, err)
	}
	seen := len(page.Records)
	for page.Cursor != "" {
		if page, err = s.List(ctx, entity.Query{Kind: "thing", Limit: limit, Cursor: page.Cursor}); err != nil {
			t.Fatal(err)
		}
		for i := range page.Records {
			seen++
			if o, err := entity.Decode[storetest.Thing](&page.Records[i]); err != nil || o.ID == first.ID && o.Spec.Color != before {
				t.Errorf("the listing has %+v, %v", o, err)
			}
		}
	}
	if seen != things {
		t.Errorf("the listing has %d of %d things", seen, things)
	}
	for {
		evs, err := w.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if i := slices.IndexFunc(evs, func(e entity.Event) bool { return e.Type == entity.EventPut }); i >= 0 {
			if evs[i].Record.ID != first.ID {
				t.Errorf("the watch has %v", evs[i])
			}
			return
		}
	}
}

// TestCopyBetweenDatabases: the new store is the old one, in every pair of
// databases. Nothing is copied to where something else is.
func TestCopyBetweenDatabases(t *testing.T) {
	dbs := databases(t)
	for from, fromURL := range dbs {
		source := fromURL(t)
		recs, lease := fill(t, source)
		for to, toURL := range dbs {
			t.Run(from+" to "+to, func(t *testing.T) {
				target := toURL(t)
				res, err := move(t, source, target)
				if err != nil {
					t.Fatal(err)
				}
				if res.Already || res.Entities() != things+2 || res.Kinds["thing"] != things || res.Leases != 1 || len(res.Digest()) != 64 {
					t.Errorf("%+v", res)
				}
				if again, err := move(t, source, target); err != nil || !again.Already || again.Digest() != res.Digest() {
					t.Errorf("the same again: %+v, %v", again, err)
				}
				verify(t, target, recs, lease)
				if res, err := move(t, source, target); !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(err.Error(), "not empty") {
					t.Errorf("to a store that changed: %+v, %v", res, err)
				}
			})
		}
	}
}

// TestKilledCopyIsRepeated: a target is empty or complete, whenever the copy was
// killed, no server starts on a part, and the next copy succeeds.
func TestKilledCopyIsRepeated(t *testing.T) {
	source := sqlitestore.Scheme + filepath.Join(t.TempDir(), "source.db")
	recs, lease := fill(t, source)
	for name, database := range databases(t) {
		for _, kill := range []string{"1", "200", fmt.Sprint(things + 3)} {
			t.Run(name+" at "+kill, func(t *testing.T) {
				t.Parallel()
				target, mine := database(t), sqlitestore.Scheme+filepath.Join(t.TempDir(), "source.db")
				b, err := os.ReadFile(strings.TrimPrefix(source, sqlitestore.Scheme))
				if err == nil {
					err = os.WriteFile(strings.TrimPrefix(mine, sqlitestore.Scheme), b, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
				for range 2 { // also a repetition may be killed
					cmd := exec.CommandContext(t.Context(), os.Args[0])
					cmd.Env = append(os.Environ(), childFrom+"="+mine, childTo+"="+target, childKill+"="+kill)
					out, err := cmd.CombinedOutput()
					if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
						t.Fatalf("the child was not killed: %v\n%s", err, out)
					}
				}
				if name == "etcd" {
					if s, err := tryOpen(t, target); !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(err.Error(), "did not end") {
						if err == nil {
							s.Close()
						}
						t.Errorf("a server starts on a part: %v", err)
					}
				} else if s := open(t, target); len(all(t, s)) > 0 {
					t.Error("the target has a part")
				} else {
					s.Close()
				}
				if res, err := move(t, mine, target); err != nil || res.Already {
					t.Fatalf("%+v, %v", res, err)
				}
				verify(t, target, recs, lease)
			})
		}
	}
}

// TestCopyConforms: a store that was copied is as good as a new one.
func TestCopyConforms(t *testing.T) {
	for name, database := range databases(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, func(t *testing.T) entity.Store {
				source, target := sqlitestore.Scheme+filepath.Join(t.TempDir(), "source.db"), database(t)
				s := open(t, source)
				if err := entity.Create(t.Context(), s, &storetest.Node{}); err != nil {
					t.Fatal(err)
				}
				s.Close()
				if _, err := move(t, source, target); err != nil {
					t.Fatal(err)
				}
				return open(t, target)
			})
		})
	}
}

// TestRefusedCopies: what cannot be copied whole is not begun.
func TestRefusedCopies(t *testing.T) {
	source, dir := sqlitestore.Scheme+filepath.Join(t.TempDir(), "source.db"), t.TempDir()
	fill(t, source)
	target, err := offline(t.Context(), sqlitestore.Scheme+filepath.Join(dir, "target.db"), true)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	from, err := offline(t.Context(), source, false)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	for what, c := range map[string]struct {
		from  transfer.Store
		kinds []*schema.Kind
		class errs.Class
		want  string
	}{
		"unknown kind":   {from, storetest.Kinds()[:1], errs.FailedPrecondition, "which this program does not know"},
		"changed source": {&changing{Store: from}, storetest.Kinds(), errs.FailedPrecondition, "changed meanwhile"},
		"empty source":   {target, storetest.Kinds(), errs.NotFound, "the source is empty"},
	} {
		if res, err := transfer.Copy(t.Context(), c.from, target, transfer.Options{Kinds: c.kinds}); !errs.Is(err, c.class) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v", what, res, err)
		}
		if rev, err := target.Read(t.Context(), func(transfer.Item) error { return errors.New("an item") }); rev != 0 || err != nil {
			t.Errorf("%s: the target has something at %d: %v", what, rev, err)
		}
	}
	other := pgtest.URL(t)
	conn, err := pgx.Connect(t.Context(), other)
	if err == nil {
		_, err = conn.Exec(t.Context(), "drop schema runtime cascade")
		err = errors.Join(err, conn.Close(t.Context()))
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, url := range map[string]string{"sqlite": sqlitestore.Scheme + filepath.Join(dir, "none.db"), "postgres": other, "etcd": etcdtest.Start(t).URL(t)} {
		if s, err := offline(t.Context(), url, false); !errs.Is(err, errs.NotFound) {
			t.Errorf("%s: a source that does not exist: %v, %v", name, s, err)
		}
	}
}

// changing is a source that has one entity less when it is read again.
type changing struct {
	transfer.Store
	reads int
}

func (c *changing) Read(ctx context.Context, f func(transfer.Item) error) (schema.Revision, error) {
	c.reads++
	skip := c.reads > 1
	return c.Store.Read(ctx, func(it transfer.Item) error {
		if skip {
			skip = false
			return nil
		}
		return f(it)
	})
}
