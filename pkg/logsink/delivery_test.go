package logsink

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/logstore"
	"miren.dev/runtime/testsupport/wait"
)

// receiver is a server that speaks ClickHouse's HTTP interface as far as inserts go, and fails as a test needs it. The
// tests of clickhouse_test.go use the real engine.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	rows   []row
	ids    map[string]int // batches by token
	query  string
	status int    // of the answers; 0: it takes them
	onRow  func() // called for each row
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{ids: map[string]int{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.status != 0 {
			http.Error(w, "Code: 60. DB::Exception: no such table", r.status)
			return
		}
		body, err := readBody(req)
		if err != nil { // its sender was killed
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.query = req.URL.Query().Get("query")
		id := req.URL.Query().Get("insert_deduplication_token")
		r.ids[id]++
		for lines := bufio.NewScanner(bytes.NewReader(body)); lines.Scan(); {
			var x row
			if err := json.Unmarshal(lines.Bytes(), &x); err != nil {
				t.Error(err)
			}
			r.rows = append(r.rows, x)
			if r.onRow != nil {
				r.onRow()
			}
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// readBody reads a request to its end, for a server inserts a whole batch or none of it.
func readBody(req *http.Request) ([]byte, error) {
	body, err := gzip.NewReader(req.Body)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(body)
}

func (r *receiver) answer(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}

func (r *receiver) messages() (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.rows {
		out = append(out, x.Message)
	}
	return out
}

func (r *receiver) target() string {
	return "clickhouse+" + r.URL + "/logs/lines"
}

func owner(_ context.Context, log string) (project, app string, err error) {
	if log == "gone" {
		return "", "", errs.New(errs.NotFound, "no such app")
	}
	return "default", log, nil
}

func numbered(from, to int) (out []logstore.Line) {
	for i := from; i < to; i++ {
		out = append(out, logstore.Line{Offset: int64(i + 1), At: time.Unix(int64(i), 0), Text: fmt.Sprintf("line %06d %s", i, strings.Repeat("x", 80))})
	}
	return out
}

func appendTo(t testing.TB, s *logstore.Store, log string, from, to int) {
	t.Helper()
	for ; from < to; from += 100 {
		if err := s.Append(log, logstore.Origin{Source: "sb-" + log, Service: "web", Version: 2}, numbered(from, min(to, from+100))); err != nil {
			t.Fatal(err)
		}
	}
}

func openLogs(t testing.TB, c logstore.Config) *logstore.Store {
	t.Helper()
	s, err := logstore.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func newDelivery(t testing.TB, url string, logs *logstore.Store, file string) *Delivery {
	t.Helper()
	sink, err := New(url, "inst")
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDelivery(Config{
		Name: "test", Sink: sink, Logs: logs, File: file, Owner: owner, Logger: slog.New(slog.DiscardHandler), Poll: 5 * time.Millisecond, Retry: 5 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// run runs a delivery until the test stops it.
func run(t *testing.T, d *Delivery) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// TestDelivery: a new sink gets the lines that are appended after its configuration, in
// order and once, also those of new logs and after a restart. An outage loses no line.
func TestDelivery(t *testing.T) {
	r := newReceiver(t)
	logs := openLogs(t, logstore.Config{Dir: t.TempDir(), SegmentBytes: 64 << 10})
	appendTo(t, logs, "shop", 0, 300)
	file := filepath.Join(t.TempDir(), "sink.json")
	d := newDelivery(t, r.target(), logs, file)
	stop := run(t, d)
	appendTo(t, logs, "shop", 300, 2300) // of several segments
	appendTo(t, logs, "gone", 0, 10)
	wait.For(t, "all lines are there", func() bool { return len(r.messages()) == 2000 })
	r.answer(http.StatusServiceUnavailable)
	appendTo(t, logs, "shop", 2300, 2400)
	wait.For(t, "the sink is told to fail", func() bool { return strings.Contains(d.Stats().Error, "503") })
	stop()
	d = newDelivery(t, r.target(), logs, file)
	run(t, d)
	appendTo(t, logs, "shop", 2400, 2500)
	r.answer(0)
	wait.For(t, "the lines of the outage are there", func() bool { return len(r.messages()) == 2200 })
	for i, m := range r.messages() {
		if want := fmt.Sprintf("line %06d", i+300); !strings.HasPrefix(m, want) {
			t.Fatalf("line %d is %q, want %q", i, m, want)
		}
	}
	wait.For(t, "the answers are counted", func() bool { return d.Stats().Sent >= 2200 && d.Stats().Error == "" })
	if st := d.Stats(); st.Sent != 2200 || st.Lost != 0 || st.Refused != 0 {
		t.Errorf("%+v", st)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	want := row{Timestamp: time.Unix(300, 0).UnixNano(), Project: "default", App: "shop", Service: "web", Version: 2, Sandbox: "sb-shop", Stream: "stdout", Message: r.rows[0].Message}
	if r.rows[0] != want || r.query != "INSERT INTO logs.lines FORMAT JSONEachRow" {
		t.Errorf("%+v by %q", r.rows[0], r.query)
	}
	for id, n := range r.ids {
		if n != 1 || id == "" {
			t.Errorf("batch %q came %d times", id, n)
		}
	}
}

// TestRefused: what the other system refuses is counted and not sent again.
func TestRefused(t *testing.T) {
	r := newReceiver(t)
	logs := openLogs(t, logstore.Config{Dir: t.TempDir()})
	d := newDelivery(t, r.target(), logs, filepath.Join(t.TempDir(), "sink.json"))
	run(t, d)
	r.answer(http.StatusBadRequest)
	appendTo(t, logs, "shop", 0, 7)
	wait.For(t, "lines are refused", func() bool { return d.Stats().Refused == 7 })
	r.answer(0)
	appendTo(t, logs, "shop", 7, 10)
	wait.For(t, "later lines are there", func() bool { return len(r.messages()) == 3 })
}

// TestLost: lines that retention deletes before they are sent are counted, and the rest
// is sent.
func TestLost(t *testing.T) {
	r := newReceiver(t)
	var d *Delivery
	logs := openLogs(t, logstore.Config{Dir: t.TempDir(), SegmentBytes: 64 << 10, MaxBytes: 140 << 10, Expired: func(log string, segment, lines int64) { d.Expired(log, segment, lines) }})
	d = newDelivery(t, r.target(), logs, filepath.Join(t.TempDir(), "sink.json"))
	appendTo(t, logs, "shop", 0, 100)
	if _, err := d.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.answer(http.StatusBadGateway)
	appendTo(t, logs, "shop", 100, 30_000)
	if _, err := d.Round(t.Context()); !errs.Is(err, errs.Unavailable) {
		t.Fatal(err)
	}
	r.answer(0)
	for more := true; more; {
		var err error
		if more, err = d.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	st := d.Stats()
	if st.Lost == 0 || st.Sent+st.Lost != 30_000 || int64(len(r.messages())) != st.Sent {
		t.Errorf("%+v, and %d lines are there", st, len(r.messages()))
	}
	if m := r.messages(); !strings.HasPrefix(m[len(m)-1], "line 029999") {
		t.Errorf("the last one is %q", m[len(m)-1])
	}
}

// child is the environment variable that makes this test deliver until it is killed.
const child = "LOGSINK_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(child); dir != "" {
		deliver(dir)
		return
	}
	os.Exit(m.Run())
}

// deliver is the server of TestKill: it appends lines and delivers them.
func deliver(dir string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	logs, err := logstore.Open(logstore.Config{Dir: filepath.Join(dir, "logs"), SegmentBytes: 64 << 10})
	if err != nil {
		fail(err)
	}
	sink, err := New(os.Getenv("LOGSINK_TEST_URL"), "inst")
	if err != nil {
		fail(err)
	}
	d, err := NewDelivery(Config{Name: "test", Sink: sink, Logs: logs, File: filepath.Join(dir, "sink.json"), Owner: owner, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Poll: time.Millisecond, Retry: time.Millisecond})
	if err != nil {
		fail(err)
	}
	go func() {
		for i := int(logs.Position("shop", "sb-shop")); i < killLines; i += 20 {
			if err := logs.Append("shop", logstore.Origin{Source: "sb-shop"}, numbered(i, i+20)); err != nil {
				fail(err)
			}
		}
	}()
	fail(d.Run(context.Background()))
}

const killLines = 20_000

// TestKill: a process that is killed again and again loses no line, and sends those of
// at most one batch again.
func TestKill(t *testing.T) {
	r := newReceiver(t)
	dir := t.TempDir()
	for kill := 1; ; kill++ {
		var stderr bytes.Buffer
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), child+"="+dir, "LOGSINK_TEST_URL="+r.target())
		cmd.Stderr = &stderr
		reached := make(chan struct{}, 1)
		n := 0
		r.mu.Lock()
		r.onRow = func() {
			if n++; n == 1500+137*kill || len(r.rows) >= killLines && strings.HasPrefix(r.rows[len(r.rows)-1].Message, fmt.Sprintf("line %06d", killLines-1)) {
				select {
				case reached <- struct{}{}:
				default:
				}
			}
		}
		r.mu.Unlock()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-reached:
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			t.Fatalf("the process sends nothing: %s", stderr.String())
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if m := r.messages(); strings.HasPrefix(m[len(m)-1], fmt.Sprintf("line %06d", killLines-1)) {
			if kill < 4 {
				t.Errorf("it was killed %d times only", kill)
			}
			break
		}
	}
	next, again := 0, 0
	for _, m := range r.messages() {
		var i int
		if _, err := fmt.Sscanf(m, "line %d", &i); err != nil {
			t.Fatal(err)
		}
		if i > next {
			t.Fatalf("line %d comes after line %d", i, next-1)
		}
		if i < next {
			again++
		}
		next = max(next, i+1)
	}
	if next != killLines {
		t.Errorf("%d lines are there", next)
	}
	t.Logf("%d lines came twice", again)
}
