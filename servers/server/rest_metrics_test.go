package server

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/logline"
	"miren.dev/runtime/pkg/logstore"
	"miren.dev/runtime/pkg/metricstore"
)

// TestMetricsOverREST: the history of an app and of its sandbox, of the project alone.
func TestMetricsOverREST(t *testing.T) {
	e := newRestEnv(t)
	own, foreign := e.newTenant("own"), e.newTenant("foreign")
	key := e.key("own", "viewer")
	path := "/apps/" + own.app.Name + "/metrics"
	e.must(http.MethodGet, path, key, "", http.StatusConflict) // none is kept

	history, err := metricstore.Open(metricstore.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { history.Close() })
	e.c.deps.Metrics.Store, e.c.deps.Metrics.Interval = history, 15*time.Second
	begin := time.Now().Add(-5 * time.Minute).Truncate(time.Minute)
	for i := range 20 {
		if err := history.Append(t.Context(), begin.Add(time.Duration(i)*15*time.Second), []metricstore.Sample{
			{Name: "sandbox_memory_bytes", Labels: map[string]string{"app": string(own.app.ID), "service": "web", "sandbox": string(own.sandbox.ID)}, Value: 7},
			{Name: "sandbox_memory_bytes", Labels: map[string]string{"app": string(foreign.app.ID), "service": "web", "sandbox": string(foreign.sandbox.ID)}, Value: 8},
		}); err != nil {
			t.Fatal(err)
		}
	}
	query := "?step=30&from=" + url.QueryEscape(begin.Add(-time.Minute).UTC().Format(time.RFC3339))
	for _, p := range []string{path, "/containers/" + string(own.sandbox.ID) + "/metrics"} {
		got := e.must(http.MethodGet, p+query, key, "", http.StatusOK)
		found := false
		for _, x := range got["series"].([]any) {
			s := x.(map[string]any)
			if s["metric"] != "memory" {
				continue
			}
			values := s["values"].([]any)
			found = s["unit"] == "bytes" && values[0] == nil && len(values) > 8 && values[6] == 7.0
		}
		if !found || got["step_seconds"] != 30.0 {
			t.Errorf("%s: %v", p, got)
		}
	}
	e.must(http.MethodGet, "/apps/"+foreign.app.Name+"/metrics", key, "", http.StatusNotFound)
	e.must(http.MethodGet, "/containers/"+string(foreign.sandbox.ID)+"/metrics", key, "", http.StatusForbidden)
	e.must(http.MethodGet, path+"?step=1&from=2020-01-01T00:00:00Z", key, "", http.StatusBadRequest)
}

// TestSearchLogsOverREST: kept lines by expression, level, service and time, the last
// ones first cut; of the project alone.
func TestSearchLogsOverREST(t *testing.T) {
	e := newRestEnv(t)
	own, foreign := e.newTenant("own"), e.newTenant("foreign")
	key := e.key("own", "viewer")
	kept, err := logstore.Open(logstore.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kept.Close)
	e.c.deps.Sandboxes.Kept = kept
	begin := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
	var lines []logstore.Line
	for i, text := range []string{"start", "a timeout", `level=warn msg="a timeout"`, "connection refused", "end"} {
		lines = append(lines, logstore.Line{Offset: int64(i + 1), At: begin.Add(time.Duration(i) * time.Minute), Text: text, Level: logline.LevelOf(text)})
	}
	for _, x := range []*tenant{own, foreign} {
		if err := kept.Append(string(x.app.ID), logstore.Origin{Source: "gone-" + x.project, Service: "web", Version: 3}, lines); err != nil {
			t.Fatal(err)
		}
	}
	path := "/apps/" + own.app.Name + "/logs"
	at := func(m int) string {
		return url.QueryEscape(begin.Add(time.Duration(m) * time.Minute).Format(time.RFC3339))
	}
	for query, want := range map[string]struct {
		lines int
		first string
		more  bool
	}{
		"":                                   {5, "start", false},
		"?grep=timeout%7Crefused":            {3, "a timeout", false},
		"?grep=timeout&limit=1":              {1, `level=warn msg="a timeout"`, true},
		"?level=warn":                        {1, `level=warn msg="a timeout"`, false},
		"?since=" + at(3):                    {2, "connection refused", false},
		"?until=" + at(1):                    {1, "start", false},
		"?service=worker":                    {0, "", false},
		"?limit=2&until=" + at(4) + "&grep=": {2, `level=warn msg="a timeout"`, true},
	} {
		got := e.must(http.MethodGet, path+query, key, "", http.StatusOK)
		list := got["lines"].([]any)
		if len(list) != want.lines || got["more"] != want.more || want.lines > 0 && list[0].(map[string]any)["text"] != want.first {
			t.Errorf("%s: %v, want %+v", query, got, want)
		}
	}
	e.must(http.MethodGet, path+"?grep=(", key, "", http.StatusBadRequest)
	// The answer is bounded in bytes too, and one with until goes on.
	long := strings.Repeat("x", agentproto.MaxLine)
	const longLines, perAnswer = 300, sandbox.MaxLogSelection / agentproto.MaxLine
	lines = nil
	for i := range longLines {
		lines = append(lines, logstore.Line{Offset: int64(i + 1), At: begin.Add(time.Duration(i) * time.Second), Text: long})
	}
	if err := kept.Append(string(own.app.ID), logstore.Origin{Source: "long", Service: "long", Version: 3}, lines); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]struct {
		lines int
		more  bool
	}{"": {perAnswer, true}, "&until=" + at(1): {60, false}, "&limit=3": {3, true}} {
		got := e.must(http.MethodGet, path+"?service=long"+query, key, "", http.StatusOK)
		if n := len(got["lines"].([]any)); n != want.lines || got["more"] != want.more {
			t.Errorf("%s: %d lines, more %v; want %+v", query, n, got["more"], want)
		}
	}
	e.must(http.MethodGet, "/apps/"+foreign.app.Name+"/logs", key, "", http.StatusNotFound)
}
