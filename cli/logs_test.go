package cli_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/sandbox"
)

func TestLogsResume(t *testing.T) {
	f := newFake(t)
	f.shop()
	line := func(n int64) sandbox.LogLine {
		version := int64(2)
		return sandbox.LogLine{Sandbox: "sb-abcdef0123456789", Service: "web", Version: &version, Offset: &n, At: time.Now(), Text: fmt.Sprintf("line %d", n)}
	}
	asked := 0
	f.logs = func(_ context.Context, req *sandbox.LogsRequest, send func(*sandbox.LogBatch) error) error {
		asked++
		if asked == 1 {
			if err := send(&sandbox.LogBatch{Lines: []sandbox.LogLine{line(1), line(2)}}); err != nil {
				return err
			}
			return unavailable
		}
		if req.Tail != nil {
			t.Errorf("asked again with a tail of %d", *req.Tail)
		}
		missed := int64(3 << 20)
		third := line(3)
		third.Missed = &missed
		return send(&sandbox.LogBatch{Lines: []sandbox.LogLine{line(1), line(2), third}})
	}
	r := run(t, false, "", "app", "logs", "-f", "shop")
	want := "web.v2[sb-abcdef01] line 1\nweb.v2[sb-abcdef01] line 2\nweb.v2[sb-abcdef01] line 3\n"
	if r.code != 0 || r.out != want || !strings.Contains(r.err, "web.v2[sb-abcdef01]: 3 MiB of older lines are gone") {
		t.Errorf("code %d, got\n%swant\n%s%s", r.code, r.out, want, r.err)
	}
}

func TestStructuredLogs(t *testing.T) {
	f := newFake(t)
	f.shop()
	version, stderr := int64(2), true
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var got sandbox.LogsRequest
	f.logs = func(_ context.Context, req *sandbox.LogsRequest, send func(*sandbox.LogBatch) error) error {
		got = *req
		return send(&sandbox.LogBatch{Lines: []sandbox.LogLine{
			{Sandbox: "sb-abcdef0123456789", Service: "web", Version: &version, At: at, Stderr: &stderr, Text: `{"level":"warn","msg":"disk\nfull","free":0,"path":"/a b","time":"x"}`},
			{Sandbox: "sb-abcdef0123456789", Service: "web", Version: &version, At: at, Text: "plain"},
		}})
	}
	r := run(t, false, "", "logs", "shop", "--json", "--since", "1h", "--grep", "d.sk", "--level", "warn", "--limit", "7", "--service", "web")
	want := `{"ts":"2026-01-02T03:04:05Z","app":"shop","version":2,"service":"web","sandbox":"sb-abcdef0123456789","stream":"stderr","level":"warn","message":"disk\nfull","fields":{"free":0,"path":"/a b"}}
{"ts":"2026-01-02T03:04:05Z","app":"shop","version":2,"service":"web","sandbox":"sb-abcdef0123456789","stream":"stdout","message":"plain"}
`
	if r.code != 0 || r.out != want {
		t.Errorf("code %d, got\n%swant\n%s%s", r.code, r.out, want, r.err)
	}
	if got.Since == nil || time.Since(*got.Since) < time.Hour || got.Grep != "d.sk" || got.Level != "warn" || got.Limit == nil || *got.Limit != 7 || got.Service != "web" || got.Tail != nil {
		t.Errorf("%+v", got)
	}
	r = run(t, true, "", "logs", "shop", "-f", "--grep", "x")
	for _, part := range []string{"WARN", "disk⏎full", "free=", `"/a b"`, "plain"} {
		if !strings.Contains(r.out, part) {
			t.Errorf("%q has no %s", r.out, part)
		}
	}
	if got.Limit == nil || *got.Limit != 20 || got.Tail != nil {
		t.Errorf("%+v", got)
	}
	if r := run(t, false, "", "logs", "shop", "--since", "soon"); r.code == 0 || !strings.Contains(r.err, "since") {
		t.Errorf("%+v", r)
	}
	if r := run(t, false, "", "logs", "shop"); r.out != "web.v2[sb-abcdef01] "+`{"level":"warn","msg":"disk\nfull","free":0,"path":"/a b","time":"x"}`+"\nweb.v2[sb-abcdef01] plain\n" {
		t.Errorf("in a pipe: %s", r.out)
	}
}
