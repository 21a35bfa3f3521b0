package server

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/event"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/events"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/servers/rest"
	"miren.dev/runtime/testsupport/wait"
)

// happen makes the next event of a project.
func (e *restEnv) happen(x *tenant, number int64, eventType, subject string) string {
	e.t.Helper()
	o := event.NewEvent()
	o.ID, o.Project = schema.ID(fmt.Sprintf("evt-%s%026d", x.projectID[len(x.projectID)-6:], number)), x.projectID
	o.Spec = event.EventSpec{
		Project: string(x.projectID), Number: number, Type: eventType, SubjectKind: "sandbox", Subject: subject, OccurredAt: time.Now(),
		Body: fmt.Sprintf(`{"type": %q, "timestamp": "2026-11-24T10:00:00Z", "data": {"kind": "sandbox", "id": %q}}`, eventType, subject),
	}
	if err := entity.Create(e.t.Context(), e.c.store, o); err != nil {
		e.t.Fatal(err)
	}
	return string(o.ID)
}

// stream opens the stream of events after one, and returns the ids that come.
func (e *restEnv) stream(key, query, after string) <-chan string {
	e.t.Helper()
	ctx, cancel := context.WithCancel(e.t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url+rest.Prefix+"/events/stream"+query, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("X-API-Key", key)
	if after != "" {
		req.Header.Set("Last-Event-ID", after)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		e.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		e.t.Fatalf("%d %s", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	ids := make(chan string, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
				ids <- id
			}
		}
	}()
	e.t.Cleanup(func() {
		cancel()
		_ = resp.Body.Close()
		wait.Receive(e.t, "the end of the stream", done)
	})
	return ids
}

// TestRESTEvents: the history of the caller's project in pages and as a stream, which
// goes on after an event, and says when others after it are gone.
func TestRESTEvents(t *testing.T) {
	e := newRestEnv(t)
	own, foreign := e.newTenant("own"), e.newTenant("foreign")
	viewer, other := e.key("own", "viewer"), e.key("foreign", "viewer")
	e.happen(foreign, 1, "sandbox.ended", "sb-9")
	var ids []string
	for i, eventType := range []string{"sandbox.running", "sandbox.paused", "execution.running", "sandbox.ended"} {
		ids = append(ids, e.happen(own, int64(i)+1, eventType, "sb-1"))
	}
	newest := slices.Clone(ids)
	slices.Reverse(newest)
	for query, want := range map[string][]string{
		"": newest, "type=sandbox.*": {ids[3], ids[1], ids[0]}, "subject=sb-9": nil, "type=sandbox.ended&subject=sb-1": {ids[3]},
		"since=" + url.QueryEscape(time.Now().Add(time.Hour).Format(time.RFC3339)): nil,
	} {
		var got []string
		for cursor := ""; ; {
			page := e.must(http.MethodGet, "/events?limit=2&"+query+"&cursor="+cursor, viewer, "", http.StatusOK)
			got = append(got, listed(page, "events", "id")...)
			if cursor, _ = page["next_cursor"].(string); cursor == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
	first := e.must(http.MethodGet, "/events?limit=1", viewer, "", http.StatusOK)["events"].([]any)[0].(map[string]any)
	if first["type"] != "sandbox.ended" || first["timestamp"] != "2026-11-24T10:00:00Z" || first["data"].(map[string]any)["id"] != "sb-1" {
		t.Errorf("%v", first)
	}
	if got := listed(e.must(http.MethodGet, "/events", other, "", http.StatusOK), "events", "id"); len(got) != 1 || slices.Contains(ids, got[0]) {
		t.Errorf("another project: %v", got)
	}
	e.must(http.MethodGet, "/events?type=sandbox", viewer, "", http.StatusBadRequest)
	e.must(http.MethodGet, "/events?cursor=x", viewer, "", http.StatusBadRequest)

	streams := map[string]<-chan string{
		"after": e.stream(viewer, "", ids[1]), "since": e.stream(viewer, "?since=2026-01-01T00:00:00Z", ""), "now": e.stream(viewer, "", ""),
		"ends": e.stream(viewer, "?type=sandbox.ended", ids[0]), "other": e.stream(other, "", ""),
	}
	ids = append(ids, e.happen(own, 5, "sandbox.running", "sb-2"), e.happen(own, 6, "sandbox.ended", "sb-2"))
	for name, want := range map[string][]string{
		"after": ids[2:], "since": ids, "now": ids[4:], "ends": {ids[3], ids[5]}, "other": nil,
	} {
		for _, id := range want {
			if got := wait.Receive(t, name+" has "+id, streams[name]); got != id {
				t.Errorf("%s: %s, want %s", name, got, id)
			}
		}
		if n := len(streams[name]); n != 0 {
			t.Errorf("%s: %d more", name, n)
		}
	}

	if err := (&events.Service{Store: e.c.store}).Expire(t.Context(), own.projectID, time.Time{}, 2); err != nil {
		t.Fatal(err)
	}
	for _, after := range []string{ids[0], ids[3], "evt-none"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, e.url+rest.Prefix+"/events/stream", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-API-Key", viewer)
		req.Header.Set("Last-Event-ID", after)
		if resp, text := e.send(req); resp.StatusCode != http.StatusGone || !strings.Contains(text, "not kept any more") {
			t.Errorf("after %s: %d, %s", after, resp.StatusCode, text)
		}
	}
}

// TestRESTKeyLimits: a key has its bounds over REST, and says what is used with it.
func TestRESTKeyLimits(t *testing.T) {
	e := newRestEnv(t)
	own := e.newTenant("own")
	e.newTenant("foreign")
	e.follow()
	admin, other := e.key("own", "admin"), e.key("foreign", "admin")
	made := e.must(http.MethodPost, "/keys", admin, `{"name": "ci", "rate": 5, "max_sandboxes": 2, "max_executions": 0}`, http.StatusCreated)
	want := "map[max_executions:0 max_sandboxes:2 rate:5]"
	if got := fmt.Sprint(made["limits"]); got != want {
		t.Errorf("made with %s", got)
	}
	keys, _, err := entity.List[core.APIKey](t.Context(), e.c.store, entity.Query{Project: own.projectID, Name: "ci"})
	if err != nil || len(keys) != 1 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	sb := sandbox.NewSandbox()
	sb.Project, sb.Spec.Template.Image, sb.Spec.APIKey = own.projectID, "img", string(keys[0].ID)
	if err := entity.Create(t.Context(), e.c.store, sb); err != nil {
		t.Fatal(err)
	}
	got := e.must(http.MethodGet, "/keys/ci", admin, "", http.StatusOK)
	if fmt.Sprint(got["limits"]) != want || fmt.Sprint(got["used"]) != "map[executions:0 sandboxes:1]" || got["key"] != nil {
		t.Errorf("%v", got)
	}
	e.must(http.MethodGet, "/keys/ci", other, "", http.StatusNotFound)
	e.must(http.MethodPost, "/keys", admin, `{"name": "bad", "max_sandboxes": -1}`, http.StatusUnprocessableEntity)
}

// TestRESTPolicy: the policy of the caller's project, and what violates it.
func TestRESTPolicy(t *testing.T) {
	e := newRestEnv(t)
	own := e.newTenant("own")
	e.newTenant("foreign")
	viewer, other := e.key("own", "viewer"), e.key("foreign", "admin")
	ttl := time.Hour
	set := &core.SetPolicyRequest{Project: "own", Policy: core.Policy{Templates: []string{"python"}, MaxEgress: core.PolicyEgressNone, MaxTTL: &ttl, PrivatePreviews: true}}
	if _, err := core.NewPoliciesClient(e.root()).Set(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	running := sandbox.NewSandbox()
	running.Project, running.Spec.Template.Image, running.Status.Phase = own.projectID, "img", sandbox.SandboxPhaseRunning
	if err := entity.Create(t.Context(), e.c.store, running); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(e.must(http.MethodGet, "/policy", viewer, "", http.StatusOK)); got != "map[confine:false max_egress:none max_ttl_seconds:3600 private_previews:true templates:[python]]" {
		t.Error(got)
	}
	if got := fmt.Sprint(e.must(http.MethodGet, "/policy", other, "", http.StatusOK)); got != "map[confine:false private_previews:false]" {
		t.Errorf("another project: %s", got)
	}
	report := e.must(http.MethodGet, "/policy/report", viewer, "", http.StatusOK)
	if n, _ := report["violations"].(float64); n < 1 || !slices.Contains(listed(report, "findings", "id"), string(running.ID)) {
		t.Errorf("%v", report)
	}
	if got := e.must(http.MethodGet, "/policy/report", other, "", http.StatusOK); slices.Contains(listed(got, "findings", "id"), string(running.ID)) {
		t.Errorf("another project: %v", got)
	}
	// Only administrators name stores that the server does not permit.
	e.must(http.MethodPost, "/sessions/"+string(own.sandbox.ID)+"/snapshots", e.key("own", "admin"), `{"store": "/elsewhere"}`, http.StatusForbidden)
}
