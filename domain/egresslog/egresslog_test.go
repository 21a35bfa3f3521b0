package egresslog

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// TestRecordsOutliveTheirSandbox: what a sandbox asked for is in the history of
// its project, and a flood of one sandbox is counted, not written.
func TestRecordsOutliveTheirSandbox(t *testing.T) {
	store := pgtest.Store(t, api.Kinds()...)
	r := New(store, func(_ context.Context, sandbox string) (string, error) {
		if sandbox == "sb-gone" {
			return "", errs.New(errs.NotFound, "no sandbox")
		}
		return "shop", nil
	}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	at := time.Now().UTC().Truncate(time.Microsecond)
	want := []egress.Record{
		{Time: at, Sandbox: "sb-1", Protocol: "dns", Name: "example.com", Allowed: true},
		{Time: at, Sandbox: "sb-1", Protocol: "tls", Name: "evil.example", Address: netip.MustParseAddr("203.0.113.1"), Port: 443, Reason: "denied"},
		{Time: at, Sandbox: "sb-1", Protocol: "https", Name: "example.com", Allowed: true, Secret: "key", Reason: "refused"},
	}
	for _, rec := range want {
		r.Add(ctx, rec)
	}
	records := func(q entity.HistoryQuery) []entity.HistoryRecord {
		t.Helper()
		q.Stream = entity.StreamEgress
		page, err := store.Records(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		return page.Records
	}
	of := entity.HistoryQuery{Projects: []string{"shop"}, SubjectKind: "sandbox", SubjectID: "sb-1"}
	wait.For(t, "three records", func() bool { return len(records(of)) == len(want) })
	outcomes := map[string]string{"dns": "ok", "tls": "permission_denied", "https": "unavailable"}
	for i, h := range records(of) {
		var rec egress.Record
		if err := json.Unmarshal(h.Detail, &rec); err != nil || rec != want[len(want)-1-i] || h.Outcome != outcomes[h.Action] {
			t.Errorf("%+v: %+v, %v", h, rec, err)
		}
	}
	const flood = burst + 100
	for i := range flood {
		r.Add(ctx, egress.Record{Time: at, Sandbox: "sb-gone", Protocol: "dns", Name: fmt.Sprint(i)})
	}
	wait.For(t, "the queue is empty", func() bool { return len(r.queue) == 0 })
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := len(records(entity.HistoryQuery{SubjectKind: "sandbox", SubjectID: "sb-gone"})); n < burst || n >= flood {
		t.Errorf("%d records of %d requests", n, flood)
	}
	if n := len(records(entity.HistoryQuery{Projects: []string{"shop"}})); n != len(want) {
		t.Errorf("%d records in the project", n)
	}
}
