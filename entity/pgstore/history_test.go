package pgstore_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

func auditRecord(request string) entity.HistoryRecord {
	return entity.HistoryRecord{Stream: entity.StreamAudit, Action: "a", RequestID: request}
}

// appended counts the records of the audit stream by request id.
func appended(t testing.TB, s *pgstore.Store) map[string]int {
	t.Helper()
	count := map[string]int{}
	for q := (entity.HistoryQuery{Stream: entity.StreamAudit}); ; {
		var page entity.HistoryPage
		wait.For(t, "the history", func() (ok bool) {
			var err error
			if page, err = s.Records(context.Background(), q); err != nil && !errs.Is(err, errs.Unavailable) {
				t.Fatal(err)
			}
			return err == nil
		})
		for _, r := range page.Records {
			count[r.RequestID]++
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return count
		}
	}
}

// TestAppendOnce: a record is appended once when the connection is lost before
// the database has the statement, and when it is lost before the answer.
func TestAppendOnce(t *testing.T) {
	for name, mode := range map[string]int32{"not committed": dropMarked, "committed": dropMarkedReply} {
		t.Run(name, func(t *testing.T) {
			p, through := startProxy(t, pgtest.URL(t))
			p.mark = []byte("marked-request")
			s := pgtest.Open(t, pgstore.Config{URL: through, Kinds: storetest.Kinds()})
			if err := s.Append(t.Context(), auditRecord("first")); err != nil {
				t.Fatal(err)
			}
			p.mode.Store(mode)
			if err := s.Append(t.Context(), auditRecord("marked-request"), auditRecord("with it")); err != nil {
				t.Fatal(err)
			}
			if err := s.Append(t.Context(), auditRecord("last")); err != nil {
				t.Fatal(err)
			}
			if n := p.cuts.Load(); n != 1 {
				t.Fatalf("%d connections were cut, want 1", n)
			}
			if got := appended(t, s); len(got) != 4 || got["marked-request"] != 1 || got["with it"] != 1 {
				t.Errorf("appended %v", got)
			}
		})
	}
}

// TestAppendUnknown: when the store cannot find out in time whether a record is
// there, it says so; the next append is not mistaken for it.
func TestAppendUnknown(t *testing.T) {
	for name, mode := range map[string]int32{"not committed": dropMarked, "committed": dropMarkedReply} {
		t.Run(name, func(t *testing.T) {
			p, through := startProxy(t, pgtest.URL(t))
			p.mark = []byte("marked-request")
			s := pgtest.Open(t, pgstore.Config{URL: through, Kinds: storetest.Kinds(), RetryFor: 200 * time.Millisecond, Connections: 1})
			if err := s.Append(t.Context(), auditRecord("first")); err != nil {
				t.Fatal(err)
			}
			p.mode.Store(mode)
			p.refuse.Store(true)
			err := s.Append(t.Context(), auditRecord("marked-request"))
			if p.cuts.Load() != 1 {
				t.Fatal("no connection was cut")
			}
			if !errs.Is(err, errs.Unavailable) || errs.Detail(err, "outcome") != "unknown" {
				t.Fatalf("got %v, outcome %q", err, errs.Detail(err, "outcome"))
			}
			p.refuse.Store(false)
			wait.For(t, "the next append", func() bool {
				err := s.Append(t.Context(), auditRecord("next"))
				if err != nil && !errs.Is(err, errs.Unavailable) {
					t.Fatal(err)
				}
				return err == nil
			})
			want := 0
			if mode == dropMarkedReply {
				want = 1
			}
			if got := appended(t, s); got["first"] != 1 || got["next"] < 1 || got["marked-request"] != want {
				t.Errorf("appended %v", got)
			}
		})
	}
}

// TestAppendWhileFrozen: a statement that PostgreSQL carries out only after its
// connection was given up does not append twice.
func TestAppendWhileFrozen(t *testing.T) {
	server := pgtest.Server(t)
	s := pgtest.Open(t, pgstore.Config{URL: server.URL(), Kinds: storetest.Kinds(), Attempt: 300 * time.Millisecond})
	var wg sync.WaitGroup
	for round := range 3 {
		signalAll(t, server.PID(), syscall.SIGSTOP)
		for i := range 5 {
			wg.Go(func() {
				if err := s.Append(context.Background(), auditRecord(fmt.Sprintf("%d-%d", round, i))); err != nil {
					t.Error(err)
				}
			})
		}
		began := time.Now()
		wait.For(t, "three attempts", func() bool { return time.Since(began) > time.Second })
		signalAll(t, server.PID(), syscall.SIGCONT)
		wg.Wait()
	}
	got := appended(t, s)
	for request, n := range got {
		if n != 1 {
			t.Errorf("%s was appended %d times", request, n)
		}
	}
	if len(got) != 15 {
		t.Errorf("%d records, want 15", len(got))
	}
}

// TestAcknowledgedRecordsSurvive: of what 8 appenders of two servers were told
// is there, everything is there once, although PostgreSQL is killed all the time.
func TestAcknowledgedRecordsSurvive(t *testing.T) {
	server := pgtest.Server(t)
	ctx, cancel := context.WithCancel(context.Background())
	supervised := make(chan error, 1)
	go func() { supervised <- server.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-supervised })
	var stores []*pgstore.Store
	for range 2 {
		stores = append(stores, pgtest.Open(t, pgstore.Config{URL: server.URL(), Kinds: storetest.Kinds()}))
	}
	stop := make(chan struct{})
	var mu sync.Mutex
	told := map[string]bool{}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				id := fmt.Sprintf("%d-%d", w, i)
				err := stores[w%2].Append(context.Background(), auditRecord(id))
				if err != nil && !errs.Is(err, errs.Unavailable) {
					t.Error(err)
					return
				}
				mu.Lock()
				told[id] = err == nil
				mu.Unlock()
			}
		})
	}
	for range 4 {
		before := len(acknowledged(&mu, told))
		more := 20 + rand.N(60) // another moment each time
		wait.For(t, "more records", func() bool { return len(acknowledged(&mu, told)) > before+more })
		if err := syscall.Kill(server.PID(), syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
	got := appended(t, stores[0])
	for id, n := range got {
		if n != 1 {
			t.Errorf("%s was appended %d times", id, n)
		}
	}
	for _, id := range acknowledged(&mu, told) {
		if got[id] != 1 {
			t.Errorf("%s was acknowledged and is there %d times", id, got[id])
		}
	}
	t.Logf("%d acknowledged, %d there", len(acknowledged(&mu, told)), len(got))
}

func acknowledged(mu *sync.Mutex, told map[string]bool) []string {
	mu.Lock()
	defer mu.Unlock()
	var ids []string
	for id, ok := range told {
		if ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// appendURL makes the test binary append to the history of a database until it is
// killed, and print what was acknowledged.
const appendURL = "PGSTORE_TEST_APPEND"

func appendForever(url string) error {
	s, err := pgstore.Open(context.Background(), pgstore.Config{URL: url, Kinds: storetest.Kinds()})
	if err != nil {
		return err
	}
	for i := range 1 << 30 {
		id := fmt.Sprintf("%d-%d", os.Getpid(), i)
		if err := s.Append(context.Background(), auditRecord(id)); err != nil {
			return err
		}
		fmt.Println(id)
	}
	return nil
}

// TestKilledServerLosesNothingAcknowledged: what a server acknowledged before it
// was killed is there, and at most one record more.
func TestKilledServerLosesNothingAcknowledged(t *testing.T) {
	url := pgtest.URL(t)
	want := map[string]int{}
	const kills = 3
	for range kills {
		cmd := exec.Command(os.Args[0])
		cmd.Env, cmd.Stderr = append(os.Environ(), appendURL+"="+url), t.Output()
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		n, at := 0, 20+rand.IntN(50)
		for lines := bufio.NewScanner(out); lines.Scan(); n++ {
			want[lines.Text()]++
			if n == at {
				_ = cmd.Process.Kill() // the rest of the output was acknowledged too
			}
		}
		if err := cmd.Wait(); err == nil || n < at {
			t.Fatalf("the server ended after %d records: %v", n, err)
		}
	}
	s := pgtest.Open(t, pgstore.Config{URL: url, Kinds: storetest.Kinds()})
	got := appended(t, s)
	for id := range want {
		if got[id] != 1 {
			t.Errorf("%s was acknowledged and is there %d times", id, got[id])
		}
	}
	if len(got) > len(want)+kills {
		t.Errorf("%d records, %d were acknowledged", len(got), len(want))
	}
}

// connect returns a connection of the test's own to the store's database, and what
// executes a statement by it.
func connect(t *testing.T, url string) (*pgx.Conn, func(sql string)) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	exec := func(sql string) {
		t.Helper()
		if _, err := c.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("set search_path = runtime")
	return c, exec
}

// TestRotateHistory: days are made ahead, and dropped whole when they are older
// than the stream's retention; a list does not fail meanwhile.
func TestRotateHistory(t *testing.T) {
	url := pgtest.URL(t)
	s := pgtest.Open(t, pgstore.Config{URL: url, Kinds: storetest.Kinds()})
	c, exec := connect(t, url)
	exec("set timezone = UTC")
	if err := s.RotateHistory(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	today := time.Now().UTC().Truncate(24 * time.Hour)
	old := func(stream entity.Stream, days int) {
		t.Helper()
		first := today.AddDate(0, 0, -days)
		exec(fmt.Sprintf("create table history_%s_%s partition of history_%s for values from ('%s') to ('%s')", stream, first.Format("20060102"), stream,
			first.Format(time.RFC3339), first.AddDate(0, 0, 1).Format(time.RFC3339)))
		exec(fmt.Sprintf("insert into history values ('%s', '%s', 'old-%d', '', '', '', '', 'a', '', '%d', null)", stream,
			first.Add(23*time.Hour).Format(time.RFC3339), days, days))
	}
	for _, days := range []int{100, 92, 90, 89, 20, 14, 13, 1} {
		old(entity.StreamAudit, days)
		old(entity.StreamEvent, days)
	}
	if err := s.Append(t.Context(), auditRecord("now")); err != nil {
		t.Fatal(err)
	}
	// Lists go on while days are dropped.
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if _, err := s.Records(ctx, entity.HistoryQuery{Stream: entity.StreamAudit}); err != nil && ctx.Err() == nil {
				t.Errorf("list: %v", err)
			}
		}
	})
	if err := s.RotateHistory(t.Context(), map[entity.Stream]time.Duration{entity.StreamEvent: 36 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	stop()
	wg.Wait()
	for stream, want := range map[entity.Stream]string{entity.StreamAudit: "now 1 13 14 20 89 90", entity.StreamEvent: "1"} {
		page, err := s.Records(t.Context(), entity.HistoryQuery{Stream: stream})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range page.Records {
			got = append(got, r.RequestID)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", stream, got, want)
		}
	}
	// A server that was away for days finds no partition for today.
	rows, err := c.Query(t.Context(), "select inhrelid::regclass::text from pg_inherits where inhparent = 'history_audit'::regclass")
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if len(names) != 8 { // six old days, today, tomorrow
		t.Errorf("days: %q", names)
	}
	for _, name := range names {
		exec("drop table " + name)
	}
	if err := s.Append(t.Context(), auditRecord("again")); err != nil {
		t.Fatal(err)
	}
	if got := appended(t, s); len(got) != 1 || got["again"] != 1 {
		t.Errorf("appended %v", got)
	}
}

// TestStuckDayHoldsUpNoOtherStream: while a transaction reads audit records for
// long, their days stay, those of the other streams are dropped, and appends and
// lists of both go on.
func TestStuckDayHoldsUpNoOtherStream(t *testing.T) {
	url := pgtest.URL(t)
	s := pgtest.Open(t, pgstore.Config{URL: url, Kinds: storetest.Kinds()})
	if err := s.RotateHistory(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	c, exec := connect(t, url)
	for _, stream := range []entity.Stream{entity.StreamAudit, entity.StreamEvent} {
		exec(fmt.Sprintf("create table history_%s_20200101 partition of history_%s for values from ('2020-01-01T00:00:00Z') to ('2020-01-02T00:00:00Z')", stream, stream))
	}
	exec("begin")
	exec("select from history_audit")
	rotated := make(chan error, 1)
	go func() { rotated <- s.RotateHistory(context.Background(), nil) }()
	n := 0
	for done := false; !done; n++ {
		began := time.Now()
		if err := s.Append(t.Context(), auditRecord(fmt.Sprint(n))); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("an append took %s", d)
		}
		select {
		case err := <-rotated:
			if done = true; !errs.Is(err, errs.Unavailable) {
				t.Errorf("got %v, want unavailable", err)
			}
		default:
		}
	}
	exec("commit")
	if got := appended(t, s); len(got) != n {
		t.Errorf("%d records, want %d", len(got), n)
	}
	for stream, want := range map[entity.Stream]bool{entity.StreamAudit: true, entity.StreamEvent: false} {
		var there bool
		if err := c.QueryRow(t.Context(), "select to_regclass($1) is not null", fmt.Sprintf("history_%s_20200101", stream)).Scan(&there); err != nil {
			t.Fatal(err)
		}
		if there != want {
			t.Errorf("the old day of %s is there: %t", stream, there)
		}
	}
	if err := s.RotateHistory(t.Context(), nil); err != nil {
		t.Errorf("once nobody reads it: %v", err)
	}
}

// TestForgottenWriter: an appender whose row was removed while it was idle goes on.
func TestForgottenWriter(t *testing.T) {
	url := pgtest.URL(t)
	s := pgtest.Open(t, pgstore.Config{URL: url, Kinds: storetest.Kinds()})
	_, exec := connect(t, url)
	for i := range 3 {
		if err := s.Append(t.Context(), auditRecord(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
		exec("delete from history_writer")
	}
	if got := appended(t, s); len(got) != 3 {
		t.Errorf("appended %v", got)
	}
}

// TestHistoryPlans: each filter follows its index in the order of the list, and
// no list sorts or reads a day whole.
func TestHistoryPlans(t *testing.T) {
	url := pgtest.URL(t)
	s := pgtest.Open(t, pgstore.Config{URL: url, Kinds: storetest.Kinds()})
	if err := s.Append(t.Context(), auditRecord("first")); err != nil {
		t.Fatal(err)
	}
	c, exec := connect(t, url)
	for _, sql := range []string{
		`insert into history select 'audit', clock_timestamp() - n * interval '1 microsecond', 'r' || n, 'p' || n % 50, 'a' || n % 100, 'app', 's' || n % 100,
			'm' || n % 30, 'ok', '', null from generate_series(1, 50000) n`,
		"analyze history",
	} {
		exec(sql)
	}
	page, err := s.Records(t.Context(), entity.HistoryQuery{Stream: entity.StreamAudit, Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for name, x := range map[string]struct {
		q     entity.HistoryQuery
		index string
	}{
		"all":     {entity.HistoryQuery{}, "pkey"},
		"time":    {entity.HistoryQuery{Since: now.Add(-time.Minute), Until: now}, "pkey"},
		"project": {entity.HistoryQuery{Projects: []string{"p7"}}, "project"},
		"actor":   {entity.HistoryQuery{Actor: "a7"}, "actor"},
		"subject": {entity.HistoryQuery{SubjectKind: "app", SubjectID: "s7"}, "subject"},
		"action":  {entity.HistoryQuery{Action: "m7"}, "action"},
	} {
		for _, cursor := range []string{"", page.Cursor} {
			x.q.Stream, x.q.Limit = entity.StreamAudit, 20
			sql, args, err := pgstore.HistorySQL(x.q, cursor)
			if err != nil {
				t.Fatal(err)
			}
			rows, err := c.Query(t.Context(), "explain "+sql, args...)
			if err != nil {
				t.Fatal(err)
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			plan := strings.Join(lines, "\n")
			if strings.Contains(plan, "Sort") || strings.Contains(plan, "Seq Scan on history_audit_"+now.UTC().Format("20060102")) ||
				!strings.Contains(plan, "Index Scan Backward") || !strings.Contains(plan, x.index) {
				t.Errorf("%s (cursor %t):\n%s", name, cursor != "", plan)
			}
		}
	}
}
