package cli_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/event"
	"miren.dev/runtime/cli"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

// happen makes the event of a number.
func (f *fake) happen(number int64, eventType, kind, subject string) string {
	f.t.Helper()
	o := event.NewEvent()
	o.ID = schema.ID(fmt.Sprintf("evt-%032d", number))
	o.Spec = event.EventSpec{
		Project: string(f.project), Number: number, Type: eventType, SubjectKind: kind, Subject: subject, OccurredAt: time.Now(),
		Body: fmt.Sprintf(`{"type": %q, "timestamp": "2026-11-24T10:00:00Z", "data": {"kind": %q, "id": %q, "phase": "stopped", "reason": "exit", "labels": {"team": "search"}}}`,
			eventType, kind, subject),
	}
	f.create(o)
	return string(o.ID)
}

type eventLine struct{ ID, Type string }

func TestEventList(t *testing.T) {
	f := newFake(t)
	contains(t, ok(t, "event", "list", "--json"), "[]")
	f.happen(1, "sandbox.running", "sandbox", "sb-1")
	f.happen(2, "execution.succeeded", "execution", "exec-1")
	f.happen(3, "sandbox.ended", "sandbox", "sb-1")
	contains(t, ok(t, "event", "list"), "sandbox.ended", "sandbox/sb-1", "exit", "team=search", "2026-11-24T10:00:00Z")
	for args, want := range map[string]string{
		"": "3 2 1", "--type sandbox.*": "3 1", "--type sandbox.ended": "3", "--subject exec-1": "2", "--limit 2": "3 2", "--since 1h": "3 2 1",
	} {
		var list []eventLine
		if err := json.Unmarshal([]byte(ok(t, append([]string{"event", "list", "--json"}, strings.Fields(args)...)...)), &list); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range list {
			got = append(got, strings.TrimLeft(e.ID, "evt-0"))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
	if r := run(t, false, "", "event", "list", "--limit", "2"); !strings.Contains(r.err, "there are older events") {
		t.Errorf("a list that is cut: %+v", r)
	}
	for _, args := range []string{"--since yesterday", "--limit 0", "--after evt-1", "--follow --after evt-1 --since 1h"} {
		if r := run(t, false, "", append([]string{"event", "list"}, strings.Fields(args)...)...); r.code != exit.Usage {
			t.Errorf("%s: %+v", args, r)
		}
	}
	if r := run(t, false, "", "event", "list", "--type", "sandbox"); r.code == 0 || !strings.Contains(r.err, "sandbox.ended") {
		t.Errorf("an unknown type: %+v", r)
	}
	if r := run(t, false, "", "event", "list", "--follow", "--after", "evt-9"); r.code == 0 || !strings.Contains(r.err, "not kept any more") {
		t.Errorf("after an unknown event: %+v", r)
	}
}

// TestEventFollow: events that exist, the oldest first, then new ones, each once.
func TestEventFollow(t *testing.T) {
	for name, args := range map[string][]string{
		"newest": {"--limit", "2"}, "after": {"--after", fmt.Sprintf("evt-%032d", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			for i := range int64(3) {
				f.happen(i+1, "sandbox.ended", "sandbox", "sb-1")
			}
			r, w := io.Pipe()
			done := make(chan int, 1)
			go func() {
				c := &console.Console{In: strings.NewReader(""), Out: w, Err: io.Discard}
				code := cli.Main(append([]string{"event", "list", "--follow", "--json"}, args...), c, nil)
				w.Close()
				done <- code
			}()
			lines := bufio.NewScanner(r)
			for i := range int64(4) {
				if i >= 2 {
					f.happen(i+2, "sandbox.ended", "sandbox", "sb-1")
				}
				var e eventLine
				if want := fmt.Sprintf("evt-%032d", i+2); !lines.Scan() || json.Unmarshal(lines.Bytes(), &e) != nil || e.ID != want {
					t.Fatalf("line %d: %q, want that of %s", i, lines.Text(), want)
				}
			}
			r.Close()
			f.happen(6, "sandbox.ended", "sandbox", "sb-1")
			wait.Receive(t, "the end of a command whose output nobody reads", done)
		})
	}
}
