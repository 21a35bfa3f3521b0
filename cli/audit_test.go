package cli_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/cli"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/testsupport/wait"
)

func TestAuditList(t *testing.T) {
	f := newFake(t)
	contains(t, ok(t, "audit", "list", "--json"), "[]")
	for i, r := range []entity.HistoryRecord{
		{Project: "shop", Actor: "alice", SubjectKind: "app", SubjectID: "blog", Action: "app.Apps/Delete", Outcome: "ok", Detail: json.RawMessage(`{"from":"certified","address":"192.0.2.7"}`)},
		{Project: "shop", Actor: "bob", SubjectKind: "app", SubjectID: "wiki", Action: "app.Apps/Create", Outcome: "permission_denied"},
		{Actor: "root", Action: "server.Server/Stop", Outcome: "ok", Detail: json.RawMessage(`{"from":"local"}`)},
	} {
		r.Stream, r.RequestID = entity.StreamAudit, fmt.Sprint(i)
		if err := f.store.Append(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	contains(t, ok(t, "audit", "list"), "192.0.2.7", "app/blog", "permission_denied", "server.Server/Stop", "local")
	now := time.Now().UTC()
	for args, want := range map[string]string{
		"":                         "2 1 0",
		"--project shop":           "1 0",
		"--actor alice":            "0",
		"--subject app/wiki":       "1",
		"--action app.Apps/Delete": "0",
		"--limit 2":                "2 1",
		"--since 1h":               "2 1 0",
		"--since 2d --until 1d":    "",
		"--until 0s":               "2 1 0",
		"--since " + now.Add(-time.Hour).Format(time.RFC3339):   "2 1 0",
		"--since " + now.AddDate(0, 0, 2).Format(time.DateOnly): "",
	} {
		var entries []struct {
			RequestID string `json:"request_id"`
			Detail    struct{ From string }
		}
		if err := json.Unmarshal([]byte(ok(t, append([]string{"audit", "list", "--json"}, strings.Fields(args)...)...)), &entries); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range entries {
			got = append(got, e.RequestID)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
	if r := run(t, false, "", "audit", "list", "--limit", "2"); !strings.Contains(r.err, "there are older records") {
		t.Errorf("a list that is cut: %+v", r)
	}
	for _, args := range []string{"--subject blog", "--subject app/", "--since yesterday", "--until -1h", "--limit 0"} {
		if r := run(t, false, "", append([]string{"audit", "list"}, strings.Fields(args)...)...); r.code != exit.Usage {
			t.Errorf("%s: %+v", args, r)
		}
	}
}

// TestAuditFollow: records that exist, the oldest first, then new ones, each once.
func TestAuditFollow(t *testing.T) {
	f := newFake(t)
	record := func(id int) {
		t.Helper()
		r := entity.HistoryRecord{Stream: entity.StreamAudit, Actor: "root", Action: "app.Apps/Create", Outcome: "ok", RequestID: fmt.Sprint(id)}
		if err := f.store.Append(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		record(i)
	}
	r, w := io.Pipe()
	done := make(chan int, 1)
	go func() {
		c := &console.Console{In: strings.NewReader(""), Out: w, Err: io.Discard}
		code := cli.Main([]string{"audit", "list", "--follow", "--limit", "2", "--json"}, c, nil)
		w.Close()
		done <- code
	}()
	lines := bufio.NewScanner(r)
	for i, want := range []string{"1", "2", "3", "4"} {
		if i >= 2 {
			record(i + 1)
		}
		var e struct {
			RequestID string `json:"request_id"`
		}
		if !lines.Scan() || json.Unmarshal(lines.Bytes(), &e) != nil || e.RequestID != want {
			t.Fatalf("line %d: %q, want that of %s", i, lines.Text(), want)
		}
	}
	r.Close()
	record(5)
	wait.Receive(t, "the end of a command whose output nobody reads", done)
	if r := run(t, false, "", "audit", "list", "--follow", "--until", "1h"); r.code != exit.Usage {
		t.Errorf("--follow with --until: %+v", r)
	}
}
