package storetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// RunHistory runs the suite of entity.History. open returns an empty one, and
// closes it at the end of the test.
func RunHistory(t *testing.T, open func(t *testing.T) entity.History) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, h entity.History)
	}{
		{"Append", testHistoryAppend},
		{"Bounds", testHistoryBounds},
		{"Filters", testHistoryFilters},
		{"Pages", testHistoryPages},
		{"ConcurrentAppends", testHistoryConcurrent},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

func appendAll(t *testing.T, h entity.History, records ...entity.HistoryRecord) {
	t.Helper()
	for part := range slices.Chunk(records, 100) {
		if err := h.Append(t.Context(), part...); err != nil {
			t.Fatal(err)
		}
	}
}

func list(t *testing.T, h entity.History, q entity.HistoryQuery) entity.HistoryPage {
	t.Helper()
	if q.Stream == "" {
		q.Stream = entity.StreamAudit
	}
	page, err := h.Records(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

func requests(records []entity.HistoryRecord) []string {
	var ids []string
	for _, r := range records {
		ids = append(ids, r.RequestID)
	}
	return ids
}

func testHistoryAppend(t *testing.T, h entity.History) {
	before := time.Now().Add(-time.Minute)
	want := entity.HistoryRecord{
		Stream: entity.StreamAudit, Project: "shop", Actor: "alice", SubjectKind: "app", SubjectID: "blog", Action: "app.Apps/Delete", Outcome: "ok",
		RequestID: "r1", Detail: json.RawMessage(`{"us": 12}`),
	}
	appendAll(t, h, want, entity.HistoryRecord{Stream: entity.StreamAudit, Action: "b", RequestID: "r2"})
	appendAll(t, h, entity.HistoryRecord{Stream: entity.StreamEvent, Action: "c"}, entity.HistoryRecord{Stream: entity.StreamExecution, Action: "d"})
	appendAll(t, h)
	got := list(t, h, entity.HistoryQuery{})
	if ids := requests(got.Records); !slices.Equal(ids, []string{"r2", "r1"}) || got.Cursor != "" {
		t.Fatalf("newest first: %q, cursor %q", ids, got.Cursor)
	}
	r := got.Records[1]
	if r.ID == "" || r.Time.Before(before) || r.Time.After(time.Now().Add(time.Minute)) || r.Time.Location() != time.UTC {
		t.Errorf("id %q at %s", r.ID, r.Time)
	}
	r.ID, r.Time = "", time.Time{}
	if fmt.Sprintf("%+v", r) != fmt.Sprintf("%+v", want) {
		t.Errorf("got  %+v\nwant %+v", r, want)
	}
	if got.Records[0].Detail != nil {
		t.Errorf("detail of nothing: %q", got.Records[0].Detail)
	}
	for stream, action := range map[entity.Stream]string{entity.StreamEvent: "c", entity.StreamExecution: "d"} {
		if p := list(t, h, entity.HistoryQuery{Stream: stream}); len(p.Records) != 1 || p.Records[0].Action != action || p.Records[0].Stream != stream {
			t.Errorf("%s: %+v", stream, p.Records)
		}
	}
}

func testHistoryBounds(t *testing.T, h entity.History) {
	good := entity.HistoryRecord{Stream: entity.StreamAudit, Action: "a"}
	for name, change := range map[string]func(r *entity.HistoryRecord){
		"unknown stream": func(r *entity.HistoryRecord) { r.Stream = "other" },
		"no action":      func(r *entity.HistoryRecord) { r.Action = "" },
		"long actor":     func(r *entity.HistoryRecord) { r.Actor = strings.Repeat("a", entity.MaxHistoryField+1) },
		"no text":        func(r *entity.HistoryRecord) { r.SubjectID = "a\x00b" },
		"not UTF-8":      func(r *entity.HistoryRecord) { r.Project = "\xff" },
		"not an object":  func(r *entity.HistoryRecord) { r.Detail = json.RawMessage(`[1]`) },
		"not JSON":       func(r *entity.HistoryRecord) { r.Detail = json.RawMessage(`{`) },
		"detail too long": func(r *entity.HistoryRecord) {
			r.Detail = json.RawMessage(`{"a":"` + strings.Repeat("x", entity.MaxHistoryDetail) + `"}`)
		},
	} {
		bad := good
		change(&bad)
		if err := h.Append(t.Context(), good, bad); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	full := good
	full.Actor, full.Detail = strings.Repeat("ä", entity.MaxHistoryField/2), json.RawMessage(`{"a":"\u0000`+strings.Repeat("x", entity.MaxHistoryDetail-14)+`"}`)
	appendAll(t, h, full)
	if p := list(t, h, entity.HistoryQuery{Actor: full.Actor}); len(p.Records) != 1 || string(p.Records[0].Detail) != string(full.Detail) {
		t.Errorf("%d records", len(p.Records))
	}
	if p := list(t, h, entity.HistoryQuery{}); len(p.Records) != 1 {
		t.Errorf("a refused append left %d records", len(p.Records)-1)
	}
	for name, q := range map[string]entity.HistoryQuery{
		"no stream": {}, "negative limit": {Stream: entity.StreamAudit, Limit: -1}, "cursor": {Stream: entity.StreamAudit, Cursor: "x"},
		"no text": {Stream: entity.StreamAudit, Actor: "\xff"},
	} {
		if _, err := h.Records(t.Context(), q); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func testHistoryFilters(t *testing.T, h entity.History) {
	n := 0
	add := func(project, actor, kind, id, action string) {
		n++
		appendAll(t, h, entity.HistoryRecord{
			Stream: entity.StreamAudit, Project: project, Actor: actor, SubjectKind: kind, SubjectID: id, Action: action, RequestID: fmt.Sprint(n),
		})
	}
	add("shop", "alice", "app", "blog", "delete")   // 1
	add("shop", "bob", "app", "blog", "create")     // 2
	add("", "alice", "node", "n1", "cordon")        // 3
	add("news", "alice", "sandbox", "s1", "delete") // 4
	add("shop", "alice", "app", "wiki", "delete")   // 5
	all := list(t, h, entity.HistoryQuery{}).Records
	for _, c := range []struct {
		q    entity.HistoryQuery
		want string
	}{
		{entity.HistoryQuery{}, "5 4 3 2 1"},
		{entity.HistoryQuery{Projects: []string{"shop"}}, "5 2 1"},
		{entity.HistoryQuery{Projects: []string{"shop", "news", "shop", "none"}}, "5 4 2 1"},
		{entity.HistoryQuery{Projects: []string{""}}, "3"},
		{entity.HistoryQuery{Projects: []string{}}, ""},
		{entity.HistoryQuery{Actor: "alice"}, "5 4 3 1"},
		{entity.HistoryQuery{SubjectKind: "app", SubjectID: "blog"}, "2 1"},
		{entity.HistoryQuery{Action: "delete"}, "5 4 1"},
		{entity.HistoryQuery{Action: "delete", Projects: []string{"shop"}, Actor: "alice"}, "5 1"},
		{entity.HistoryQuery{Since: all[2].Time}, "5 4 3"},
		{entity.HistoryQuery{Until: all[2].Time}, "2 1"},
		{entity.HistoryQuery{Since: all[3].Time, Until: all[1].Time, Actor: "alice"}, "3"},
		{entity.HistoryQuery{Limit: 2}, "5 4"},
		{entity.HistoryQuery{Stream: entity.StreamEvent}, ""},
	} {
		if got := strings.Join(requests(list(t, h, c.q).Records), " "); got != c.want {
			t.Errorf("%+v: %q, want %q", c.q, got, c.want)
		}
	}
}

func testHistoryPages(t *testing.T, h entity.History) {
	var records []entity.HistoryRecord
	var want []string
	for i := range 250 {
		records = append(records, entity.HistoryRecord{
			Stream: entity.StreamAudit, Project: []string{"shop", "news"}[i%2], Action: "a", RequestID: fmt.Sprint(i),
		})
		want = append(want, fmt.Sprint(249-i))
	}
	appendAll(t, h, records...)
	for _, q := range []entity.HistoryQuery{{Limit: 100}, {Limit: 50, Projects: []string{"shop", "news"}}, {Limit: 250}, {Limit: 249}} {
		var got []string
		for {
			page := list(t, h, q)
			got = append(got, requests(page.Records)...)
			if q.Cursor = page.Cursor; q.Cursor == "" {
				break
			}
			if len(page.Records) != q.Limit {
				t.Fatalf("a page of %d, limit %d", len(page.Records), q.Limit)
			}
			// What is appended now is not on later pages.
			appendAll(t, h, entity.HistoryRecord{Stream: entity.StreamAudit, Project: "shop", Action: "later", RequestID: "later"})
		}
		got = slices.DeleteFunc(got, func(id string) bool { return id == "later" }) // of the query before
		if !slices.Equal(got, want) {
			t.Errorf("limit %d: %d records, want %d: %q", q.Limit, len(got), len(want), got)
		}
	}
}

func testHistoryConcurrent(t *testing.T, h entity.History) {
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := range 25 {
				r := entity.HistoryRecord{Stream: entity.StreamAudit, Actor: fmt.Sprintf("w%d", w), Action: "a", RequestID: fmt.Sprint(i)}
				if err := h.Append(t.Context(), r); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for w := range 16 {
		got := requests(list(t, h, entity.HistoryQuery{Actor: fmt.Sprintf("w%d", w)}).Records)
		for i, id := range got {
			if id != fmt.Sprint(24-i) {
				t.Fatalf("writer %d: %q", w, got)
			}
		}
		if len(got) != 25 {
			t.Errorf("writer %d: %d records", w, len(got))
		}
	}
}
