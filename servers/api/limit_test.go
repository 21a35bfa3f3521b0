package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"miren.dev/runtime/pkg/errs"
)

// clock is a time that stands still until it is moved.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

// limited is a server with a rate of 1 per second and a burst of 2, whose face
// answers with status 200.
func limited(t *testing.T, face http.Handler) (*Server, *clock, *prometheus.Registry) {
	t.Helper()
	e, c, reg := newEnv(t, nil), &clock{time.Now()}, prometheus.NewRegistry()
	s := New(Config{Authenticate: e.cfg.Authenticate, Local: e.cfg.Local, Ready: e.cfg.Ready, Logger: e.cfg.Logger, Metrics: reg})
	s.limiter = newLimiter(1, 2, c.now)
	s.Handle("one", "/one", face)
	s.Intercept("two", func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/two") }, face)
	return s, c, reg
}

type okFace struct{}

func (okFace) ServeHTTP(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok") }

func (okFace) Subject(r *http.Request) string { return r.Header.Get("X-Token") }

func ask(t *testing.T, s *Server, path, peer string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.RemoteAddr = peer
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// TestRateOfACaller: the requests of a key count together, whatever face and
// address they come by; without a valid key those of an address do.
func TestRateOfACaller(t *testing.T) {
	s, c, _ := limited(t, okFace{})
	for i, q := range []struct {
		path, peer string
		header     []string
		status     int
	}{
		{"/one", "192.0.2.1:1", []string{"X-API-Key", "a"}, 200},
		{"/two", "192.0.2.2:1", []string{"Authorization", "Bearer a"}, 200},
		{"/one", "192.0.2.3:1", []string{"X-API-Key", "a"}, 429},
		{"/two", "192.0.2.3:1", []string{"X-API-Key", "a"}, 429},
		{"/one", "192.0.2.1:1", []string{"X-API-Key", "b"}, 200}, // another key from the same address
		{"/one", "192.0.2.1:1", []string{"X-API-Key", "bad"}, 200},
		{"/one", "192.0.2.1:2", nil, 200},
		{"/one", "192.0.2.1:3", []string{"X-API-Key", "bad"}, 429}, // guesses of keys
		{"/two", "192.0.2.1:4", []string{"X-Token", "t"}, 200},     // the face knows the caller
		{"/healthz", "192.0.2.1:5", nil, 200},                      // of no face
		{"/one", "[2001:db8::1]:1", nil, 200},
		{"/one", "[2001:db8::2]:1", nil, 200},
		{"/one", "[2001:db8::3]:1", nil, 429}, // the network of one host
		{"/one", "[2001:db8:0:1::1]:1", nil, 200},
	} {
		if w := ask(t, s, q.path, q.peer, q.header...); w.Code != q.status {
			t.Errorf("request %d: %d, %s", i, w.Code, w.Body)
		}
	}
	c.t = c.t.Add(time.Second)
	if w := ask(t, s, "/one", "192.0.2.3:1", "X-API-Key", "a"); w.Code != 200 {
		t.Errorf("a second later: %d", w.Code)
	}
}

// TestLimitedRequest: the answer is a problem that says when to come again.
func TestLimitedRequest(t *testing.T) {
	s, _, _ := limited(t, okFace{})
	s.limiter.rate = 1.0 / 3
	var w *httptest.ResponseRecorder
	for range 3 {
		w = ask(t, s, "/one", "192.0.2.1:1", "X-API-Key", "a")
	}
	var p Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 429 || p.Status != 429 || p.Class != "resource_exhausted" || p.Hint == "" ||
		w.Header().Get("Content-Type") != ProblemType || w.Header().Get("Retry-After") != "3" {
		t.Errorf("%d, %v, %v: %s", w.Code, w.Header(), err, w.Body)
	}
}

// TestRateOfAKey: a key's own rate holds where it is lower than that of the
// server, or the server has none; another one follows at once.
func TestRateOfAKey(t *testing.T) {
	c := &clock{time.Now()}
	permitted := func(l *limiter, own int64) (n int) {
		for n < 50 && l.wait("key a", own) == 0 {
			n++
		}
		return n
	}
	l := newLimiter(10, 20, c.now)
	for _, step := range []struct {
		own  int64
		want int
	}{{3, 3}, {3, 0}, {2, 2}, {100, 20}, {0, 0}} {
		if got := permitted(l, step.own); got != step.want {
			t.Errorf("own rate %d: %d requests, want %d", step.own, got, step.want)
		}
	}
	none := newLimiter(0, 0, c.now)
	if a, b := permitted(none, 0), permitted(none, 3); a != 50 || b != 3 {
		t.Errorf("a server without a rate: %d and %d requests", a, b)
	}
	if err := none.refused(3); !strings.Contains(err.Error(), "3 requests") || !strings.Contains(errs.HintOf(err), "--rate") {
		t.Errorf("%v", err)
	}
}

// TestBucketsAreBounded: callers that made no request for long are forgotten, and
// those beyond the bound share a bucket.
func TestBucketsAreBounded(t *testing.T) {
	c := &clock{time.Now()}
	l := newLimiter(1, 2, c.now)
	for i := range maxBuckets {
		if l.wait(fmt.Sprint(i), 0) != 0 {
			t.Fatal("the first request of a caller is refused")
		}
	}
	for i, want := range []bool{true, true, false} {
		if got := l.wait(fmt.Sprint("new", i), 0) == 0; got != want {
			t.Errorf("caller %d beyond the bound: permitted is %v", i, got)
		}
	}
	if len(l.all) != maxBuckets {
		t.Errorf("%d buckets", len(l.all))
	}
	c.t = c.t.Add(2 * time.Second)
	if l.wait("new", 0); len(l.all) != 1 {
		t.Errorf("%d buckets later", len(l.all))
	}
}

// TestMetricsOfFaces: by face and outcome.
func TestMetricsOfFaces(t *testing.T) {
	status := 0
	s, _, reg := limited(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if status == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
	}))
	for i, status2 := range []int{200, 404, 503, 0} {
		status = status2
		func() {
			defer func() { _ = recover() }()
			ask(t, s, "/one", "192.0.2.1:1", "X-API-Key", fmt.Sprint("k", i))
		}()
	}
	status = 200
	for range 3 {
		ask(t, s, "/two", "192.0.2.1:1", "X-API-Key", "a")
	}
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	inflight := 0.0
	for _, f := range all {
		for _, m := range f.Metric {
			inflight += m.GetGauge().GetValue()
			if m.Histogram != nil {
				got[m.Label[0].GetValue()+" "+m.Label[1].GetValue()] = m.Histogram.GetSampleCount()
			}
		}
	}
	want := map[string]uint64{"one ok": 1, "one refused": 1, "one failed": 2, "two ok": 2, "two limited": 1}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v", got)
	}
	if inflight != 0 {
		t.Errorf("%v requests in flight", inflight)
	}
}
