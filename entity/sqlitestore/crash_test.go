package sqlitestore_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"modernc.org/sqlite"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/sqlitestore"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/schema"
)

// Variables of the environment of a child, which runs the script.
const (
	childPath = "SQLITESTORE_TEST_PATH" // of the store
	childKill = "SQLITESTORE_TEST_KILL" // which write of a row or commit it is killed at; 0: none
)

func TestMain(m *testing.M) {
	if path := os.Getenv(childPath); path != "" {
		n, err := strconv.Atoi(os.Getenv(childKill))
		if err == nil {
			err = child(path, n)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// child runs the script, tells how far it is, and kills itself at the nth write.
func child(path string, n int) error {
	if n > 0 {
		killAt(n)
	}
	s, err := sqlitestore.Open(context.Background(), sqlitestore.Config{Path: path, Kinds: storetest.Kinds()})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := prepare(s); err != nil {
		return err
	}
	fmt.Println(0)
	for i := 1; ; i++ {
		if n > 0 && i > steps {
			fmt.Println("done")
			return nil
		}
		if err := step(s, i); err != nil {
			return err
		}
		fmt.Println(i)
	}
}

// killAt makes the connections that are opened from now on kill the process at the
// nth change of a row or commit.
func killAt(n int) {
	sqlite.RegisterConnectionHook(func(c sqlite.ExecQuerierContext, _ string) error {
		h, ok := c.(sqlite.HookRegisterer)
		if !ok {
			return errors.New("the driver has no hooks")
		}
		count := func() {
			if n--; n == 0 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
		h.RegisterPreUpdateHook(func(sqlite.SQLitePreUpdateData) { count() })
		h.RegisterCommitHook(func() int32 { count(); return 0 })
		return nil
	})
}

// steps is how many transactions a script has that is killed at every write.
const steps = 6

const (
	project = schema.ID("proj-p")
	counter = schema.ID("thing-counter")
)

// prepare makes what every step of the script changes.
func prepare(s *sqlitestore.Store) error {
	ctx := context.Background()
	if err := entity.Create(ctx, s, &storetest.Project{Meta: schema.Meta{ID: project}}); err != nil {
		return err
	}
	return entity.Create(ctx, s, &storetest.Thing{Meta: schema.Meta{ID: counter, Project: project}, Spec: storetest.ThingSpec{Color: "counter"}})
}

// pair returns the ids of the two things of a step.
func pair(i int) [2]schema.ID {
	return [2]schema.ID{schema.ID(fmt.Sprintf("thing-a%d", i)), schema.ID(fmt.Sprintf("thing-b%d", i))}
}

// step is one transaction, and then one record of history: it makes a pair that
// refer to each other, counts, and deletes the pair of three steps before by one
// of them.
func step(s *sqlitestore.Store, i int) error {
	ctx := context.Background()
	p := pair(i)
	a := &storetest.Thing{Meta: schema.Meta{ID: p[0], Project: project, Name: string(p[0])}, Spec: storetest.ThingSpec{Color: "a", Size: int64(i), Global: string(p[0])}}
	b := &storetest.Thing{Meta: schema.Meta{ID: p[1], Project: project}, Spec: storetest.ThingSpec{Color: "b", Owner: p[0], Weight: make([]byte, 5000)}}
	ops := []entity.Op{entity.AddOp(storetest.ThingKind, counter, entity.Addition{Attr: "status.count", Delta: 1})}
	add := func(op entity.Op, err error) error {
		ops = append(ops, op)
		return err
	}
	err := errors.Join(add(entity.CreateOp(a)), add(entity.CreateOp(b)))
	if i > 3 {
		old, e := entity.Get[storetest.Thing](ctx, s, pair(i - 3)[0])
		if e != nil {
			return e
		}
		err = errors.Join(err, add(entity.DeleteOp(old)))
	}
	if err != nil {
		return err
	}
	if _, err := s.Txn(ctx, entity.TxnRequest{RequestID: fmt.Sprint(i), Ops: ops}); err != nil {
		return err
	}
	return s.Append(ctx, entity.HistoryRecord{Stream: entity.StreamAudit, Action: "step", RequestID: fmt.Sprint(i)})
}

// verify opens a store after a crash and returns how many steps it has. Each is
// there as a whole, in every table, and the store can be used.
func verify(t *testing.T, path string) int {
	t.Helper()
	s := open(t, sqlitestore.Config{Path: path})
	defer s.Close()
	c, err := entity.Get[storetest.Thing](t.Context(), s, counter)
	if err != nil {
		t.Fatalf("the counter: %v", err)
	}
	n := int(c.Status.Count)
	var want []schema.ID
	for i := max(1, n-2); i <= n; i++ {
		p := pair(i)
		want = append(want, p[:]...)
	}
	want = append(want, counter)
	slices.Sort(want)
	page, err := s.List(t.Context(), entity.Query{Kind: "thing"})
	if err != nil {
		t.Fatal(err)
	}
	var got, byColor []schema.ID
	for _, r := range page.Records {
		got = append(got, r.ID)
	}
	for _, color := range []string{"a", "b", "counter"} {
		page, err := s.List(t.Context(), entity.Query{Kind: "thing", Index: []entity.IndexMatch{{Attr: "spec.color", Op: entity.IndexEq, Value: []byte(color)}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page.Records {
			byColor = append(byColor, r.ID)
		}
	}
	slices.Sort(byColor)
	if !slices.Equal(got, want) || !slices.Equal(byColor, want) {
		t.Fatalf("after %d steps: %q, by color %q, want %q", n, got, byColor, want)
	}
	// The log has every change: a create, a create and an update for each step, and
	// two deletions from the fourth on.
	w, err := s.Watch(t.Context(), entity.WatchQuery{Kinds: []string{"thing"}, From: schema.Token{Epoch: page.Token.Epoch}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	changes := 0
	for bookmark := false; !bookmark; {
		for _, e := range next(t, w) {
			if bookmark = e.Type == entity.EventBookmark; !bookmark {
				changes++
			}
		}
	}
	if want := 1 + 3*n + 2*max(0, n-3); changes != want || page.Token.Revision != schema.Revision(n+2) {
		t.Fatalf("after %d steps: %d changes in the log, want %d; revision %d", n, changes, want, page.Token.Revision)
	}
	// The history is one step behind at most.
	records, err := s.Records(t.Context(), entity.HistoryQuery{Stream: entity.StreamAudit, Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	h := 0
	if len(records.Records) > 0 {
		h, _ = strconv.Atoi(records.Records[0].RequestID)
	}
	if h != n && h != n-1 {
		t.Fatalf("after %d steps the history ends at %d", n, h)
	}
	if err := step(s, n+1); err != nil {
		t.Fatalf("the next step: %v", err)
	}
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var ok string
	if err := db.QueryRow("pragma integrity_check").Scan(&ok); err != nil || ok != "ok" {
		t.Fatalf("integrity: %q, %v", ok, err)
	}
	return n
}

// run runs a child and returns the last step that it acknowledged, -1 if it did
// not get that far. kill is called with each, and may kill it.
func run(t *testing.T, path string, n int, kill func(c *exec.Cmd)) (acked int, done bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childPath+"="+path, fmt.Sprintf("%s=%d", childKill, n))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	acked = -1
	if kill != nil {
		kill(cmd)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if done = lines.Text() == "done"; done {
			continue
		}
		if acked, err = strconv.Atoi(lines.Text()); err != nil {
			t.Fatal(err)
		}
	}
	var exit *exec.ExitError
	if err = cmd.Wait(); !done && errors.As(err, &exit) {
		if st, _ := exit.Sys().(syscall.WaitStatus); !st.Signaled() {
			t.Fatalf("the child failed: %s", &stderr)
		}
	}
	return acked, done
}

// TestKilledAtEveryWrite: a process that is killed at any change of a row, or
// before any commit, leaves every transaction that it acknowledged, and no part of
// another one.
func TestKilledAtEveryWrite(t *testing.T) {
	for n := 1; ; n++ {
		path := filepath.Join(t.TempDir(), "store.db")
		acked, done := run(t, path, n, nil)
		if done {
			if n < 20*steps {
				t.Errorf("only %d writes", n)
			}
			t.Logf("%d writes", n-1)
			return
		}
		if acked < 0 {
			continue // it was killed while it prepared
		}
		if got := verify(t, path); got != acked && got != acked+1 {
			t.Fatalf("killed at write %d after step %d: the store has %d steps", n, acked, got)
		}
	}
}

// TestKilledAnywhere: the same, at times that have nothing to do with its writes.
func TestKilledAnywhere(t *testing.T) {
	for range 8 {
		path := filepath.Join(t.TempDir(), "store.db")
		acked, _ := run(t, path, 0, func(c *exec.Cmd) {
			timer := time.AfterFunc(time.Duration(200+rand.IntN(800))*time.Millisecond, func() { _ = c.Process.Kill() })
			t.Cleanup(func() { timer.Stop() })
		})
		if acked < 0 {
			continue
		}
		if got := verify(t, path); got != acked && got != acked+1 {
			t.Fatalf("killed after step %d: the store has %d steps", acked, got)
		}
	}
}

// TestTornLog: whatever part of the WAL reached the disk after a sync, a store has
// every transaction whose sync had returned, and no part of another one.
func TestTornLog(t *testing.T) {
	const frame = 24 + 4096
	path := filepath.Join(t.TempDir(), "store.db")
	s := open(t, sqlitestore.Config{Path: path})
	if err := prepare(s); err != nil {
		t.Fatal(err)
	}
	size := func() int {
		info, err := os.Stat(path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		return int(info.Size())
	}
	first := size()
	var synced []int // sizes after each step
	for i := 1; i <= steps; i++ {
		if err := step(s, i); err != nil {
			t.Fatal(err)
		}
		synced = append(synced, size())
	}
	read := func(path string) []byte {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	base, wal := read(path), read(path+"-wal")
	wal = wal[:size()]
	copies := 0
	try := func(db, wal []byte) int {
		copies++
		to := filepath.Join(t.TempDir(), "store.db")
		if err := errors.Join(os.WriteFile(to, db, 0o600), os.WriteFile(to+"-wal", wal, 0o600)); err != nil {
			t.Fatal(err)
		}
		return verify(t, to)
	}
	for at := first; at <= len(wal); at += frame {
		for _, cut := range []int{at, at + frame/2} {
			if cut = min(cut, len(wal)); cut < first {
				continue
			}
			// The history of a step is a transaction after it.
			least := 0
			for least < steps && synced[least] <= cut {
				least++
			}
			if got := try(base, wal[:cut]); got != least && got != least+1 {
				t.Fatalf("WAL cut at %d of %d: %d steps, want %d", cut, len(wal), got, least)
			}
			// What was there before the sectors were written.
			if rest := len(wal) - cut; rest > 0 {
				if got := try(base, append(slices.Clone(wal[:cut]), make([]byte, rest)...)); got != least && got != least+1 {
					t.Fatalf("WAL empty from %d of %d: %d steps, want %d", cut, len(wal), got, least)
				}
			}
		}
	}

	// A checkpoint that was cut off: some pages of the file are new.
	s.Close()
	after := read(path)
	if bytes.Equal(after, base) || !strings.HasPrefix(string(after), "SQLite format 3") {
		t.Fatal("there was no checkpoint")
	}
	for range 10 {
		mixed := slices.Clone(after)
		for p := 0; p+4096 <= len(base); p += 4096 {
			if rand.IntN(2) == 0 {
				copy(mixed[p:], base[p:p+4096])
			}
		}
		if got := try(mixed[:4096*(1+rand.IntN(len(mixed)/4096))], wal); got != steps {
			t.Fatalf("checkpoint cut off: %d steps", got)
		}
	}
	t.Logf("%d copies", copies)
}
