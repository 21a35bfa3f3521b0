package logsink

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/logline"
	"miren.dev/runtime/pkg/logstore"
	"miren.dev/runtime/testsupport/checkout"
	"miren.dev/runtime/testsupport/clickhousetest"
	"miren.dev/runtime/testsupport/wait"
)

// startClickHouse starts an engine with the table that the guide tells to create.
func startClickHouse(t *testing.T) *clickhousetest.Server {
	t.Helper()
	s := clickhousetest.Start(t)
	s.Query(t, checkout.DocBlock(t, "docs/sinks.md", "CREATE TABLE"))
	return s
}

func toClickHouse(t *testing.T, s *clickhousetest.Server, table string) Sink {
	t.Helper()
	sink, err := New("clickhouse+http://"+s.Address+"/logs/"+table, "inst")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sink.Close)
	return sink
}

// TestClickHouse: the table of the guide has every column of each line that was sent, in ClickHouse's engine. A batch
// that is sent again is stored once.
func TestClickHouse(t *testing.T) {
	s := startClickHouse(t)
	sink := toClickHouse(t, s, "lines")
	b := Batch{ID: "shop-1-0-0-8"}
	for i, text := range []string{"plain", "", "a \xff byte", "nul \x00, tab \t, \"quotes\", 'others' and \\", "日本語 🎉 <&>\u2028", strings.Repeat("x", 64<<10), `{"level":"info","message":"of JSON"}`} {
		b.Entries = append(b.Entries, Entry{"default", "shop", logstore.Line{
			Source: "sb-1", Service: "web", Version: 3, At: at.Add(time.Duration(i)), Text: text, Level: logline.Level(i), Stderr: i%2 == 1,
		}})
	}
	b.Entries = append(b.Entries, Entry{"other", "job", logstore.Line{Source: "sb-2", Version: 1 << 60, At: at.Add(time.Hour), Text: "without a service"}})
	for range 2 {
		if err := sink.Send(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	got := strings.Split(strings.TrimSpace(s.Query(t, `SELECT * REPLACE toUnixTimestamp64Nano(timestamp) AS timestamp FROM logs.lines ORDER BY timestamp
		SETTINGS output_format_json_quote_64bit_integers = 0 FORMAT JSONEachRow`)), "\n")
	if len(got) != len(b.Entries) {
		t.Fatalf("%d rows of %d lines", len(got), len(b.Entries))
	}
	for i, e := range b.Entries {
		want := row{
			Timestamp: e.At.UnixNano(), Project: e.Project, App: e.App, Service: e.Service, Version: e.Version, Sandbox: e.Source,
			Stream: map[bool]string{false: "stdout", true: "stderr"}[e.Stderr], Level: e.Level.String(), Message: valid(e.Text),
		}
		var r row
		if err := json.Unmarshal([]byte(got[i]), &r); err != nil || r != want {
			t.Errorf("%v: row %.300s, want %.300s", err, got[i], fmt.Sprintf("%+v", want))
		}
	}
}

// TestQueryOfGuide: the query of the guide has the errors of an app, and nothing else.
func TestQueryOfGuide(t *testing.T) {
	s := startClickHouse(t)
	if err := toClickHouse(t, s, "lines").Send(t.Context(), Batch{ID: "1", Entries: []Entry{
		{"default", "shop", logstore.Line{At: at, Source: "sb-1", Service: "web", Text: "info", Level: logline.Info, Stderr: true}},
		{"default", "shop", logstore.Line{At: at.Add(1), Source: "sb-1", Service: "web", Text: "failed", Level: logline.Error}},
		{"default", "shop", logstore.Line{At: at.Add(2), Source: "sb-1", Service: "web", Text: "panic", Stderr: true}},
		{"default", "other", logstore.Line{At: at.Add(3), Source: "sb-2", Text: "of another app", Level: logline.Fatal}},
	}}); err != nil {
		t.Fatal(err)
	}
	want := "2026-01-02 03:04:05.678901002\tweb\tsb-1\tpanic\n2026-01-02 03:04:05.678901001\tweb\tsb-1\tfailed\n"
	if got := s.Query(t, checkout.DocBlock(t, "docs/sinks.md", "SELECT")); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestOtherTables: columns that a table lacks are left out. While a table is missing, its lines wait; a table that cannot
// have them refuses them.
func TestOtherTables(t *testing.T) {
	s := startClickHouse(t)
	sink := toClickHouse(t, s, "few")
	if err := sink.Send(t.Context(), twoLines()); !errs.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "few") {
		t.Errorf("without the table: %v", err)
	}
	s.Query(t, "CREATE TABLE logs.few (app String, message String, extra Int32 DEFAULT 7) ENGINE = MergeTree ORDER BY app")
	if err := sink.Send(t.Context(), twoLines()); err != nil {
		t.Fatal(err)
	}
	if got := s.Query(t, "SELECT app, message, extra FROM logs.few ORDER BY message"); got != "shop\ta \uFFFD line\t7\nother\tof another app\t7\nshop\ton stderr\t7\n" {
		t.Errorf("rows %q", got)
	}
	s.Query(t, "CREATE TABLE logs.wrong (app Int32, message String) ENGINE = MergeTree ORDER BY app")
	if err := toClickHouse(t, s, "wrong").Send(t.Context(), twoLines()); !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), "app") {
		t.Errorf("an app that is a number: %v", err)
	}
}

// TestKilledClickHouse: an engine that is killed again and again after it has inserted a batch, before it answers, has
// each line once.
func TestKilledClickHouse(t *testing.T) {
	const lines, kills = 8_000, 3
	s := startClickHouse(t)
	target := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", s.Address }}
	var inserts atomic.Int32
	killed := make(chan struct{})
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n := inserts.Add(1); n%3 != 2 || n > 3*kills {
			target.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		target.ServeHTTP(answer, r)
		if answer.Code != http.StatusOK {
			t.Errorf("the insert before the kill: %d %s", answer.Code, answer.Body)
		}
		killed <- struct{}{} // the test kills it
		<-killed
		panic(http.ErrAbortHandler)
	}))
	defer proxy.Close()
	store := openLogs(t, logstore.Config{Dir: t.TempDir(), SegmentBytes: 64 << 10})
	d := newDelivery(t, "clickhouse+"+proxy.URL+"/logs/lines", store, filepath.Join(t.TempDir(), "sink.json"))
	defer run(t, d)()
	appendTo(t, store, "shop", 0, lines)
	for range kills {
		wait.Receive(t, "a batch is inserted", killed)
		s.Kill()
		s.Run(t)
		killed <- struct{}{}
	}
	wait.For(t, "all lines are answered", func() bool { return d.Stats().Sent == lines })
	if got := s.Query(t, "SELECT count(), uniqExact(message), min(message) LIKE 'line 000000%' FROM logs.lines"); got != fmt.Sprintf("%d\t%d\t1\n", lines, lines) {
		t.Errorf("rows, distinct lines, whether the first is there: %q, want %d", got, lines)
	}
}
