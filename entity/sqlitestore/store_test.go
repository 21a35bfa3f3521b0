package sqlitestore_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/sqlitestore"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

func newProject(t testing.TB, s entity.Store) schema.ID {
	t.Helper()
	p := new(storetest.Project)
	if err := entity.Create(t.Context(), s, p); err != nil {
		t.Fatal(err)
	}
	return p.ID
}

func create(t testing.TB, s entity.Store, project schema.ID, change ...func(o *storetest.Thing)) *storetest.Thing {
	t.Helper()
	o := &storetest.Thing{Meta: schema.Meta{Project: project}, Spec: storetest.ThingSpec{Color: "red"}}
	for _, c := range change {
		c(o)
	}
	if err := entity.Create(t.Context(), s, o); err != nil {
		t.Fatal(err)
	}
	return o
}

// next returns the next events of a watch.
func next(t *testing.T, w entity.Watch) []entity.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	evs, err := w.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return evs
}

// statement runs a statement on the file of a store, beside the store.
func statement(t *testing.T, path, query string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	if err == nil {
		_, err = db.Exec(query)
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// TestOneProcess: a second one is refused, and says why; when the first has ended
// the store can be opened.
func TestOneProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir with space?", "a#b%.db")
	s := open(t, sqlitestore.Config{Path: path})
	o := create(t, s, newProject(t, s))
	_, err := sqlitestore.Open(t.Context(), sqlitestore.Config{Path: path, Kinds: storetest.Kinds()})
	if !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(err.Error(), "another process") {
		t.Fatalf("a second one: %v", err)
	}
	s.Close()
	s = open(t, sqlitestore.Config{Path: path})
	if _, err := s.Get(t.Context(), "thing", o.ID); err != nil {
		t.Error(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: others must not read it", info, err)
	}
}

// TestReopened: everything that was acknowledged is there, a watch goes on where it
// was, a request is recognised, and leases get their full time again.
func TestReopened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := open(t, sqlitestore.Config{Path: path, ExpireInterval: 20 * time.Millisecond})
	proj := newProject(t, s)
	page, err := s.List(t.Context(), entity.Query{Kind: "thing"})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := s.Grant(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	o := create(t, s, proj, func(o *storetest.Thing) { o.Name, o.Lease = "n", lease.ID })
	op, err := entity.CreateOp(&storetest.Thing{Meta: schema.Meta{Project: proj, ID: "thing-once"}, Spec: storetest.ThingSpec{Color: "blue"}})
	if err != nil {
		t.Fatal(err)
	}
	req := entity.TxnRequest{RequestID: "once", Ops: []entity.Op{op}}
	first, err := s.Txn(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Append(t.Context(), entity.HistoryRecord{Stream: entity.StreamAudit, Action: "a"}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := s.Txn(t.Context(), req); !errs.Is(err, errs.Unavailable) {
		t.Errorf("after Close: %v", err)
	}

	began := time.Now()
	s = open(t, sqlitestore.Config{Path: path, ExpireInterval: 20 * time.Millisecond})
	renewed, err := s.KeepAlive(t.Context(), lease.ID)
	if err != nil || renewed.TTL != time.Second || renewed.ExpiresAt.Before(began.Add(time.Second)) {
		t.Errorf("lease: %+v, %v", renewed, err)
	}
	again, err := s.Txn(t.Context(), req)
	if err != nil || again.Revision != first.Revision {
		t.Errorf("repeated: %+v, %v", again, err)
	}
	records, err := s.Records(t.Context(), entity.HistoryQuery{Stream: entity.StreamAudit})
	if err != nil || len(records.Records) != 1 {
		t.Errorf("history: %+v, %v", records, err)
	}
	w, err := s.Watch(t.Context(), entity.WatchQuery{Kinds: []string{"thing"}, From: page.Token})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	evs := next(t, w)
	if len(evs) < 2 || evs[0].Record.ID != o.ID || evs[1].Record.ID != "thing-once" {
		t.Errorf("events: %+v", evs)
	}
	wait.For(t, "the lease to lapse", func() bool {
		_, err := s.Get(t.Context(), "thing", o.ID)
		return errs.Is(err, errs.NotFound)
	})
	if _, err := s.KeepAlive(t.Context(), lease.ID); !errs.Is(err, errs.NotFound) {
		t.Errorf("a lapsed lease: %v", err)
	}
}

// TestCopiedFile: tokens of the original are not valid in a copy, nor after an
// earlier state was put into the same file and NewEpoch called.
func TestCopiedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := open(t, sqlitestore.Config{Path: path})
	o := create(t, s, newProject(t, s))
	page, err := s.List(t.Context(), entity.Query{Kind: "thing"})
	if err != nil {
		t.Fatal(err)
	}
	refused := func(s *sqlitestore.Store) {
		t.Helper()
		if _, err := s.Watch(t.Context(), entity.WatchQuery{From: page.Token}); !errs.Is(err, errs.Compacted) {
			t.Errorf("a token of before: %v", err)
		}
		if _, err := s.Get(t.Context(), "thing", o.ID); err != nil {
			t.Error(err)
		}
	}
	if err := s.NewEpoch(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused(s)
	if page, err = s.List(t.Context(), entity.Query{Kind: "thing"}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "store.db")
	if err := os.WriteFile(other, b, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(open(t, sqlitestore.Config{Path: other}))
}

// TestCompact: what is older than the floor is gone and says so; lists and watches
// above it go on.
func TestCompact(t *testing.T) {
	s := open(t, sqlitestore.Config{RingEvents: 16})
	proj := newProject(t, s)
	o := create(t, s, proj)
	create(t, s, proj)
	early, err := s.List(t.Context(), entity.Query{Kind: "thing", Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	update := func(n int) {
		for range n {
			o.Spec.Size++
			if err := entity.UpdateSpec(t.Context(), s, o); err != nil {
				t.Fatal(err)
			}
		}
	}
	update(100)
	late, err := s.List(t.Context(), entity.Query{Kind: "thing", Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	update(50)
	if err := s.Compact(t.Context(), time.Hour, 60); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Watch(t.Context(), entity.WatchQuery{From: early.Token}); !errs.Is(err, errs.Compacted) {
		t.Errorf("watch from below the floor: %v", err)
	}
	if _, err := s.List(t.Context(), entity.Query{Kind: "thing", Limit: 1, Cursor: early.Cursor}); !errs.Is(err, errs.Compacted) {
		t.Errorf("list from below the floor: %v", err)
	}
	if p, err := s.List(t.Context(), entity.Query{Kind: "thing", Limit: 1, Cursor: late.Cursor}); err != nil || len(p.Records) != 1 {
		t.Errorf("list: %+v, %v", p, err)
	}
	w, err := s.Watch(t.Context(), entity.WatchQuery{From: late.Token})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for want := late.Token.Revision + 1; want <= o.Revision; {
		for _, e := range next(t, w) {
			if e.Type != entity.EventBookmark && e.Record.Revision != want {
				t.Fatalf("revision %d, want %d", e.Record.Revision, want)
			} else if e.Type != entity.EventBookmark {
				want++
			}
		}
	}
}

// TestRotateHistory drops what is old, of each stream as it is kept.
func TestRotateHistory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := open(t, sqlitestore.Config{Path: path})
	for _, stream := range entity.Streams {
		for range 2 {
			if err := s.Append(t.Context(), entity.HistoryRecord{Stream: stream, Action: "a"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	statement(t, path, `update history set at = at - 30 * 86400000000 where rowid % 2 = 0`)
	if err := s.RotateHistory(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for stream, want := range map[entity.Stream]int{entity.StreamAudit: 2, entity.StreamEvent: 1, entity.StreamExecution: 1, entity.StreamEgress: 1} {
		p, err := s.Records(t.Context(), entity.HistoryQuery{Stream: stream})
		if err != nil || len(p.Records) != want {
			t.Errorf("%s: %d records, %v; want %d", stream, len(p.Records), err, want)
		}
	}
}

// TestNewerVersion: a file that a newer program wrote is left alone.
func TestNewerVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	open(t, sqlitestore.Config{Path: path}).Close()
	statement(t, path, `pragma user_version = 1000`)
	_, err := sqlitestore.Open(t.Context(), sqlitestore.Config{Path: path, Kinds: storetest.Kinds()})
	if !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("%v", err)
	}
}

// TestListsUseIndexes: no list of the history reads more than its range.
func TestListsUseIndexes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	open(t, sqlitestore.Config{Path: path})
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, q := range []entity.HistoryQuery{
		{}, {Projects: []string{"p"}}, {Actor: "a"}, {SubjectKind: "app", SubjectID: "x"}, {Action: "a"}, {Since: time.Now()},
	} {
		q.Stream, q.Limit = entity.StreamAudit, 10
		query, args := sqlitestore.HistorySQL(q)
		rows, err := db.Query("explain query plan "+query, args...)
		if err != nil {
			t.Fatal(err)
		}
		var plan []string
		for rows.Next() {
			var id, parent, unused int
			var step string
			if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
				t.Fatal(err)
			}
			plan = append(plan, step)
		}
		if got := strings.Join(plan, "; "); !strings.HasPrefix(got, "SEARCH history USING INDEX") || strings.Contains(got, "TEMP B-TREE") {
			t.Errorf("%+v: %s", q, got)
		}
	}
}

// TestDurable: the WAL is synced at every commit.
func TestDurable(t *testing.T) {
	s := open(t, sqlitestore.Config{})
	for name, want := range map[string]string{"journal_mode": "wal", "synchronous": "2"} {
		if got, err := s.Pragma(name); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", name, got, err, want)
		}
	}
}

// TestFull: while there is no room writes fail, whole, and reads go on; when there
// is room again, writes do too.
func TestFull(t *testing.T) {
	s := open(t, sqlitestore.Config{})
	proj := newProject(t, s)
	if _, err := s.Pragma("max_page_count = 60"); err != nil {
		t.Fatal(err)
	}
	var there []schema.ID
	for {
		o := &storetest.Thing{Meta: schema.Meta{Project: proj}, Spec: storetest.ThingSpec{Color: "red", Weight: make([]byte, 10_000)}}
		err := entity.Create(t.Context(), s, o)
		if err == nil && len(there) < 100 {
			there = append(there, o.ID)
			continue
		}
		if !errs.Is(err, errs.Unavailable) || errs.Detail(err, "outcome") != "" {
			t.Fatalf("after %d: %v", len(there), err)
		}
		break
	}
	record := entity.HistoryRecord{Stream: entity.StreamAudit, Action: "a", Detail: []byte(`{"a":"` + strings.Repeat("x", 16_000) + `"}`)}
	var err error
	for range 20 {
		if err = s.Append(t.Context(), record); err != nil {
			break
		}
	}
	if !errs.Is(err, errs.Unavailable) {
		t.Errorf("append: %v", err)
	}
	page, err := s.List(t.Context(), entity.Query{Kind: "thing"})
	if err != nil || len(page.Records) != len(there) || len(there) == 0 {
		t.Fatalf("%d things of %d, %v", len(page.Records), len(there), err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("ping: %v", err)
	}
	if _, err := s.Pragma("max_page_count = 100000"); err != nil {
		t.Fatal(err)
	}
	if o := create(t, s, proj); o.Revision != page.Token.Revision+1 {
		t.Errorf("revision %d after %d", o.Revision, page.Token.Revision)
	}
}
