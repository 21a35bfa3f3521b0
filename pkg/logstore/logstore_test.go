package logstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/logline"
	"miren.dev/runtime/pkg/logstore"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const app = "app-1"

type env struct {
	*testing.T
	c logstore.Config
	s *logstore.Store
}

func newEnv(t *testing.T, c logstore.Config) *env {
	t.Helper()
	c.Dir = filepath.Join(t.TempDir(), "logs")
	e := &env{T: t, c: c}
	e.open()
	t.Cleanup(func() { e.s.Close() })
	return e
}

func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

func (e *env) open() {
	e.Helper()
	if e.s != nil {
		e.s.Close()
	}
	s, err := logstore.Open(e.c)
	e.must(err)
	e.s = s
}

func (e *env) read(q logstore.Query) []logstore.Line {
	e.Helper()
	x, err := e.s.Snapshot(app)
	e.must(err)
	defer x.Close()
	var out []logstore.Line
	e.must(x.Read(context.Background(), q, func(l logstore.Line) error {
		out = append(out, l)
		return nil
	}))
	return out
}

func texts(lines []logstore.Line) string {
	var out []string
	for _, l := range lines {
		out = append(out, l.Text)
	}
	return strings.Join(out, ",")
}

// numbered returns lines from..to-1 of a source, a millisecond apart.
func numbered(source string, from, to int) []logstore.Line {
	var out []logstore.Line
	for i := from; i < to; i++ {
		out = append(out, logstore.Line{
			Source: source, Service: "web", Version: 3, Offset: int64(i+1) * 100, At: t0.Add(time.Duration(i) * time.Millisecond),
			Stderr: i%3 == 0, Level: logline.Level(i % 4), Text: fmt.Sprintf("%s line %d %s", source, i, strings.Repeat("x", i%97)),
		})
	}
	return out
}

func origin(source string) logstore.Origin {
	return logstore.Origin{Source: source, Service: "web", Version: 3}
}

// What is appended is read, in the order of time, whatever is sealed and however
// often the store is opened.
func TestLinesOfManySources(t *testing.T) {
	e := newEnv(t, logstore.Config{SegmentBytes: 20_000})
	rng := rand.New(rand.NewPCG(1, 2))
	done := map[string]int{"a": 0, "b": 0, "c": 0}
	var want []logstore.Line
	for range 300 {
		source := string(rune('a' + rng.IntN(3)))
		n := rng.IntN(30)
		lines := numbered(source, done[source], done[source]+n)
		done[source] += n
		want = append(want, lines...)
		e.must(e.s.Append(app, origin(source), lines))
		if rng.IntN(40) == 0 {
			e.open()
		}
	}
	slices.SortStableFunc(want, func(a, b logstore.Line) int { return a.At.Compare(b.At) })
	got := e.read(logstore.Query{})
	if len(got) != len(want) {
		t.Fatalf("%d lines instead of %d", len(got), len(want))
	}
	last := map[string]int64{}
	for i, l := range got {
		if !l.At.Equal(want[i].At) || l.Offset <= last[l.Source] {
			t.Fatalf("line %d: %+v", i, l)
		}
		last[l.Source] = l.Offset
		n := int(l.Offset/100) - 1
		w := numbered(l.Source, n, n+1)[0]
		if l.At = l.At.UTC(); l != w {
			t.Fatalf("%+v instead of %+v", l, w)
		}
	}
	for source, n := range done {
		if got := e.s.Position(app, source); got != int64(n)*100 {
			t.Errorf("position of %s: %d instead of %d", source, got, n*100)
		}
	}
	if files, _ := filepath.Glob(filepath.Join(e.c.Dir, app, "*.zst")); len(files) < 3 {
		t.Errorf("%d sealed segments", len(files))
	}
}

func TestRepeatedLinesAreLeftOut(t *testing.T) {
	e := newEnv(t, logstore.Config{})
	e.must(e.s.Append(app, origin("a"), numbered("a", 0, 10)))
	e.must(e.s.Append(app, origin("a"), numbered("a", 5, 12)))
	e.open()
	e.must(e.s.Append(app, origin("a"), numbered("a", 0, 13)))
	if got := e.read(logstore.Query{}); len(got) != 13 {
		t.Errorf("%d lines: %s", len(got), texts(got))
	}
}

func TestForgottenSourceHasNoPosition(t *testing.T) {
	e := newEnv(t, logstore.Config{SegmentBytes: 4096})
	e.must(e.s.Append(app, origin("a"), numbered("a", 0, 10)))
	e.must(e.s.Append(app, origin("b"), numbered("b", 0, 10)))
	if name, o, ok := e.s.Find("a"); !ok || name != app || o != origin("a") {
		t.Error(name, o, ok)
	}
	e.must(e.s.Forget(app, "a"))
	if e.s.Position(app, "a") != 1000 {
		t.Error("the position is gone at once")
	}
	e.must(e.s.Append(app, origin("a"), numbered("a", 0, 10))) // of one who reads the source still
	for range 2 {
		if _, _, ok := e.s.Find("a"); ok || e.s.Position(app, "b") != 1000 {
			t.Error("positions after Forget")
		}
		e.open()
	}
	if got := e.read(logstore.Query{}); len(got) != 20 {
		t.Errorf("%d lines", len(got))
	}
}

func TestQueries(t *testing.T) {
	e := newEnv(t, logstore.Config{SegmentBytes: 4096})
	lines := numbered("a", 0, 400)
	for i := range lines {
		if i%50 == 0 {
			lines[i].Text = fmt.Sprintf("request %d took 12ms", i)
		}
	}
	e.must(e.s.Append(app, origin("a"), lines))
	e.must(e.s.Append(app, logstore.Origin{Source: "w", Service: "worker"}, []logstore.Line{{Offset: 7, At: t0.Add(time.Hour), Text: "job"}}))
	for name, q := range map[string]logstore.Query{
		"since":   {Since: t0.Add(390 * time.Millisecond)},
		"until":   {Until: t0.Add(7 * time.Millisecond)},
		"between": {Since: t0.Add(100 * time.Millisecond), Until: t0.Add(103 * time.Millisecond)},
		"service": {Service: "worker"},
		"none":    {Service: "cron"},
		"level":   {Level: logline.Error},
		"literal": {Grep: regexp.MustCompile("request 350")},
		"regexp":  {Grep: regexp.MustCompile(`(?i)REQUEST [13]\d+ took`)},
		"start":   {Grep: regexp.MustCompile(`^request`), Level: logline.Info},
	} {
		var want []string
		for _, l := range append(slices.Clone(lines), logstore.Line{Service: "worker", At: t0.Add(time.Hour), Text: "job"}) {
			if q.Match(&l) {
				want = append(want, l.Text)
			}
		}
		got := e.read(q)
		if texts(got) != strings.Join(want, ",") || len(want) == 0 != (name == "none") {
			t.Errorf("%s: %s instead of %q", name, texts(got), want)
		}
	}
	left := 5
	got := e.read(logstore.Query{Service: "web", Last: func(*logstore.Line) (bool, bool) {
		left--
		return true, left > 0
	}})
	if texts(got) != texts(lines[395:]) {
		t.Errorf("the last lines: %s", texts(got))
	}
	if got := e.read(logstore.Query{Last: func(*logstore.Line) (bool, bool) { return true, true }}); len(got) != 401 || got[0].Text != lines[0].Text {
		t.Errorf("all as last ones: %d", len(got))
	}
}

func TestBoundOfBytes(t *testing.T) {
	e := newEnv(t, logstore.Config{MaxBytes: 100_000, SegmentBytes: 16_384})
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range 500 {
		b := make([]byte, 1000)
		for j := range b {
			b[j] = byte('!' + rng.IntN(90)) // hard to compress
		}
		e.must(e.s.Append(app, origin("a"), []logstore.Line{{Offset: int64(i + 1), At: t0.Add(time.Duration(i) * time.Second), Text: string(b)}}))
	}
	if n := e.s.Bytes(app); n > 100_000 || n < 50_000 {
		t.Errorf("%d bytes", n)
	}
	got := e.read(logstore.Query{})
	if len(got) < 50 || got[len(got)-1].Offset != 500 || got[0].Offset != 500-int64(len(got))+1 {
		t.Errorf("%d lines from %d to %d", len(got), got[0].Offset, got[len(got)-1].Offset)
	}
	if e.s.Position(app, "a") != 500 {
		t.Error("the position went with old lines")
	}
}

func TestBoundOfAge(t *testing.T) {
	now := t0
	e := newEnv(t, logstore.Config{MaxAge: time.Hour, Now: func() time.Time { return now }})
	for i := range 120 { // a line a minute: the log never fills a segment
		now = t0.Add(time.Duration(i) * time.Minute)
		e.must(e.s.Append(app, origin("a"), []logstore.Line{{Offset: int64(i + 1), At: now, Text: fmt.Sprint(i)}}))
		e.must(e.s.Expire())
	}
	got := e.read(logstore.Query{})
	if age := now.Sub(got[0].At); age < time.Hour || age > time.Hour+10*time.Minute {
		t.Errorf("the oldest line is %v old", age)
	}
	now = now.Add(2 * time.Hour)
	e.must(e.s.Expire())
	e.must(e.s.Expire())
	if got := e.read(logstore.Query{}); len(got) != 0 {
		t.Errorf("%d lines, all too old", len(got))
	}
	e.open()
	if e.s.Position(app, "a") != 120 {
		t.Error("the position is lost with the lines")
	}
}

func TestRemove(t *testing.T) {
	e := newEnv(t, logstore.Config{})
	e.must(e.s.Append(app, origin("a"), numbered("a", 0, 10)))
	e.must(e.s.Remove(app))
	e.must(e.s.Remove(app))
	if _, err := os.Stat(filepath.Join(e.c.Dir, app)); !os.IsNotExist(err) || len(e.read(logstore.Query{})) != 0 || len(e.s.Names()) != 0 {
		t.Error("something is left of a removed log", err)
	}
	if err := e.s.Append("../x", origin("a"), numbered("a", 0, 1)); !errs.Is(err, errs.InvalidArgument) {
		t.Error(err)
	}
}

// A snapshot is read whole while its segment is sealed and lines come.
func TestSnapshotStays(t *testing.T) {
	e := newEnv(t, logstore.Config{SegmentBytes: 8192})
	e.must(e.s.Append(app, origin("a"), numbered("a", 0, 20)))
	x, err := e.s.Snapshot(app)
	e.must(err)
	defer x.Close()
	e.must(e.s.Append(app, origin("a"), numbered("a", 20, 500)))
	var got []logstore.Line
	e.must(x.Read(context.Background(), logstore.Query{}, func(l logstore.Line) error {
		got = append(got, l)
		return nil
	}))
	if texts(got) != texts(numbered("a", 0, 20)) || x.Position("a") != 2000 {
		t.Errorf("%d lines, position %d", len(got), x.Position("a"))
	}
}
