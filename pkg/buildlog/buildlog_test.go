package buildlog

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

func read(t *testing.T, l *Logs, id string, offset int64, follow bool) ([]string, int64) {
	t.Helper()
	var got []string
	err := l.Read(t.Context(), id, offset, follow, func(e Event, next int64) error {
		got = append(got, e.Text)
		offset = next
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got, offset
}

func TestReadWhileWritten(t *testing.T) {
	l := New(t.TempDir(), 0)
	w, err := l.Start("bld-1")
	if err != nil {
		t.Fatal(err)
	}
	w.Add(Event{Kind: StepLog, Text: "one"})
	got, off := read(t, l, "bld-1", 0, false)
	if !slices.Equal(got, []string{"one"}) {
		t.Fatalf("got %q", got)
	}
	done := make(chan []string)
	started := make(chan struct{})
	go func() {
		var got []string
		close(started)
		_ = l.Read(context.Background(), "bld-1", off, true, func(e Event, _ int64) error {
			got = append(got, e.Text)
			return nil
		})
		done <- got
	}()
	<-started
	w.Add(Event{Kind: StepLog, Text: "two"})
	w.Add(Event{Kind: StepLog, Text: "three"})
	w.Finish()
	if got := <-done; !slices.Equal(got, []string{"two", "three"}) {
		t.Fatalf("followed %q", got)
	}
	if _, err := l.Start("bld-1"); err != nil {
		t.Fatalf("a finished log can be started anew: %v", err)
	}
}

func TestLogIsBounded(t *testing.T) {
	l := New(t.TempDir(), 1000)
	w, err := l.Start("bld-2")
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		w.Add(Event{Text: strings.Repeat("x", 40)})
	}
	w.Finish()
	got, size := read(t, l, "bld-2", 0, true)
	if size > 1100 || !strings.Contains(got[len(got)-1], "full") {
		t.Errorf("%d bytes, last %q", size, got[len(got)-1])
	}
}

// A half-written line of a killed server does not hide the lines around it.
func TestTornLine(t *testing.T) {
	dir := t.TempDir()
	text := `{"kind":"log","step":1,"at":"2026-01-02T03:04:05Z","took":5,"text":"one"}` + "\n" + `{"kind":"lo` + "\n" + `{"kind":"done","step":1,"text":"two"}` + "\n" + `{"kind`
	if err := os.WriteFile(filepath.Join(dir, "bld-3.jsonl"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _ := read(t, New(dir, 0), "bld-3", 0, true); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("got %q", got)
	}
}

func TestBadNamesAreRefused(t *testing.T) {
	l := New(t.TempDir(), 0)
	for _, id := range []string{"", "../x", "a/b", "A"} {
		if _, err := l.Start(id); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("Start(%q): %v", id, err)
		}
	}
	if err := l.Read(t.Context(), "bld-none", 0, false, nil); !errs.Is(err, errs.NotFound) {
		t.Errorf("a missing log: %v", err)
	}
}
