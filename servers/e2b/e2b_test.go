package e2b

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

func newServer(t *testing.T) *Server {
	t.Helper()
	s, err := New(Config{Key: []byte(strings.Repeat("k", 32))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestDurationsOfHeaders(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 0, "x": 0, "-5": 0, "-99999999999999999999": 0, "0": 0, "30": 30 * time.Second,
		"18446744074": 9223372036 * time.Second, "99999999999999999999": 9223372036 * time.Second,
	} {
		if got := duration(text, time.Second); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// A time to live that no duration has must neither wrap around nor be taken.
func TestTimeToLiveBeyondEveryDuration(t *testing.T) {
	for _, seconds := range []int64{18446744075, 27670116111, math.MaxInt64} {
		d := ttl(seconds)
		if err := (&sandbox.ExtendRequest{Sandbox: "sb-aaaaaaaaaaaaaaaa", TTL: &d}).Validate(); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%d seconds are taken as %s: %v", seconds, d, err)
		}
	}
	d := ttl(365 * 24 * 3600)
	if err := (&sandbox.ExtendRequest{Sandbox: "sb-aaaaaaaaaaaaaaaa", TTL: &d}).Validate(); err != nil || d != 365*24*time.Hour {
		t.Errorf("a year is taken as %s: %v", d, err)
	}
}

// The server refuses a size above the maximum, also one that overflows 64 bits in the unit of the system.
func TestSizesOfTemplates(t *testing.T) {
	s := newServer(t)
	for body, ok := range map[string]bool{
		`"cpuCount": 2, "memoryMB": 512, "minFreeDiskMB": 1024`: true,
		`"memoryMB": 16777216`:            true,
		`"memoryMB": 16777217`:            false,
		`"memoryMB": 17592186044417`:      false, // 2^64 bytes and a MiB
		`"memoryMB": -1`:                  false,
		`"cpuCount": 18446744073709552`:   false,
		`"minFreeDiskMB": 17592186044417`: false,
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v3/templates", strings.NewReader(`{"name": "shop", `+body+`}`))
		_, _, err := s.requestBuild(t.Context(), nil, httptest.NewRecorder(), r)
		if ok && err != nil || !ok && !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// What clients do not fetch of one sandbox has a bound, however long its paths are and however many
// watches have ended.
func TestUnfetchedEventsAreBounded(t *testing.T) {
	v := &watcher{}
	var bytes int
	for e := (fileEvent{Name: strings.Repeat("x", 4000), Type: "EVENT_TYPE_CREATE"}); v.add(e) == nil; {
		if bytes += len(e.Name); bytes > 2<<20 {
			t.Fatal("a watcher keeps more than 2 MiB of paths")
		}
	}

	var all watchers
	ended := make(chan struct{})
	close(ended)
	for i := range 3 * maxWatchersOf {
		if err := all.add(fmt.Sprint(i), &watcher{sandbox: "sb-a", ended: ended}); err != nil {
			t.Fatal(err)
		}
	}
	if err := all.add("other", &watcher{sandbox: "sb-b", ended: ended}); err != nil {
		t.Fatal(err)
	}
	if n := len(all.live); n > maxWatchersOf+1 || all.live["other"] == nil || all.live[fmt.Sprint(3*maxWatchersOf-1)] == nil {
		t.Errorf("%d watchers whose watches have ended are kept", n)
	}
}

// A sandbox that starts many short processes does not fill the memory of the server with their ends.
func TestEndedProcessesAreBounded(t *testing.T) {
	s := newServer(t)
	const many = 1000
	var last *process
	for pid := range int64(many) {
		last = &process{config: processConfig{Cmd: "true"}, followers: map[*follower]struct{}{}}
		key := processKey{"sb-a", pid}
		s.processes.add(key, last)
		s.end(key, last, &processEvent{End: endOf(0)}, nil)
	}
	if n := len(s.processes.live); n >= many {
		t.Errorf("the server keeps the ends of %d processes of a sandbox", n)
	}
	if last.config.Cmd != "" {
		t.Error("the server keeps the command of a process that has ended")
	}
	first, newest := int64(0), int64(many-1)
	if _, _, err := s.processes.find("sb-a", selector{PID: &first}); !errs.Is(err, errs.NotFound) {
		t.Errorf("the first process: %v", err)
	}
	if _, p, err := s.processes.find("sb-a", selector{PID: &newest}); err != nil || p != last {
		t.Errorf("the newest process: %v", err)
	}
}

func TestTokenOpensItsSandboxOnly(t *testing.T) {
	s := newServer(t)
	const a, b = id.Sandbox("sb-aaaaaaaaaaaaaaaa"), id.Sandbox("sb-bbbbbbbbbbbbbbbb")
	if !s.holds(s.token(a), a) {
		t.Error("the token of a sandbox is refused")
	}
	for _, token := range []string{"", s.token(b), s.trafficToken(a), strings.ToUpper(s.token(a))} {
		if s.holds(token, a) {
			t.Errorf("token %q is accepted", token)
		}
	}
	if _, err := New(Config{Key: []byte("short")}); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("a short key: %v", err)
	}
}

func TestMarkOfAProcess(t *testing.T) {
	for _, m := range []mark{newMark(0, ""), newMark(time.Hour, "a:b")} {
		got, ok := parseMark(m.String())
		if !ok || got.start != m.start || got.tag != m.tag || got.deadline.UnixMilli() != m.deadline.UnixMilli() {
			t.Errorf("%+v is read as %+v", m, got)
		}
	}
	for _, tag := range []string{"", "e2b", "e2b:", "e2b:x", "mine:x:1:y", "e2b:x:!:y"} {
		if m, ok := parseMark(tag); ok {
			t.Errorf("%q is read as %+v", tag, m)
		}
	}
}

// An older client names the sandbox in calls of the control plane, too.
func TestCallsOfTheControlPlaneThatNameASandbox(t *testing.T) {
	s := newServer(t)
	s.cfg.Authenticate = func(context.Context, string) (*Caller, error) {
		return nil, errs.New(errs.Unauthenticated, "the key is not valid")
	}
	for path, want := range map[string]int{"/sandboxes/sbaaaaaaaaaaaaaaaa/connect": 401, "/v2/sandboxes": 401, "/nothing": 404} {
		r := httptest.NewRequest("POST", path, strings.NewReader("{}"))
		r.Header.Set("E2b-Sandbox-Id", "sbaaaaaaaaaaaaaaaa")
		r.Header.Set("E2b-Sandbox-Port", envdPort)
		r.Header.Set("X-API-Key", "wrong")
		w := httptest.NewRecorder()
		if s.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestMetadataOfAnUpload(t *testing.T) {
	h := http.Header{}
	h.Set("X-Metadata-Author", "A b")
	h.Add("X-Metadata-Author", "second")
	h.Set("x-metadata-Empty", "")
	h.Set("X-Metadata-", "no key")
	h.Set("Content-Type", "text/plain")
	if m, err := uploadMetadata(h); err != nil || !maps.Equal(m, map[string]string{"author": "A b", "empty": ""}) {
		t.Errorf("%q, %v", m, err)
	}
	many := http.Header{}
	for i := range maxMetadata + 1 {
		many.Set(fmt.Sprintf("X-Metadata-K%d", i), "v")
	}
	for what, h := range map[string]http.Header{
		"a long key": {"X-Metadata-" + strings.Repeat("k", maxMetadataKey+1): {"v"}}, "a line": {"X-Metadata-K": {"a\nb"}},
		"no ASCII": {"X-Metadata-K": {"\xc3\xa4"}}, "a long value": {"X-Metadata-K": {strings.Repeat("v", maxMetadataBytes)}}, "many keys": many,
	} {
		if m, err := uploadMetadata(h); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%s: %q, %v", what, m, err)
		}
	}
}

func TestEveryCallOfEnvdNeedsTheToken(t *testing.T) {
	s := newServer(t)
	for _, path := range []string{
		"/process.Process/Start", "/process.Process/Connect", "/process.Process/List", "/process.Process/SendInput", "/process.Process/CloseStdin",
		"/process.Process/SendSignal", "/process.Process/Update", "/filesystem.Filesystem/Stat", "/filesystem.Filesystem/ListDir",
		"/filesystem.Filesystem/MakeDir", "/filesystem.Filesystem/Move", "/filesystem.Filesystem/Remove", "/filesystem.Filesystem/WatchDir",
		"/filesystem.Filesystem/CreateWatcher", "/filesystem.Filesystem/GetWatcherEvents", "/filesystem.Filesystem/RemoveWatcher", "/files",
	} {
		r := httptest.NewRequest("POST", path, strings.NewReader("{}"))
		r.Header.Set("E2b-Sandbox-Id", "sbaaaaaaaaaaaaaaaa")
		r.Header.Set("E2b-Sandbox-Port", envdPort)
		r.Header.Set("Content-Type", "application/connect+json")
		r.Header.Set("X-Access-Token", s.token("sb-bbbbbbbbbbbbbbbb"))
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != 401 {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	for _, c := range []struct{ port, method, path string }{{interpreterPort, "POST", "/execute"}, {interpreterPort, "GET", "/contexts"}, {"3000", "GET", "/"}} {
		r := httptest.NewRequest(c.method, c.path, strings.NewReader("{}"))
		r.Host = c.port + "-sbaaaaaaaaaaaaaaaa.example.com"
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != 401 {
			t.Errorf("%s: %d %s", c.path, w.Code, w.Body)
		}
	}
}

func TestMatches(t *testing.T) {
	for target, want := range map[string]bool{
		"http://h/v2/sandboxes": true, "http://h/sandboxes/x": true, "http://h/files?path=a": true, "http://h/api/v1/sessions": false, "http://h/healthz": false,
		"http://49983-sbaaaaaaaaaaaaaaaa.h:80/health": true, "http://shop.example.com/": false,
	} {
		if got := Matches(httptest.NewRequest("GET", target, nil)); got != want {
			t.Errorf("%s: %v", target, got)
		}
	}
}

func TestIDs(t *testing.T) {
	if got := sandboxID(publicID(id.Sandbox("sb-0123456789abcdef"))); got != "sb-0123456789abcdef" {
		t.Error(got)
	}
}

func TestMetadataIsKeptInLabels(t *testing.T) {
	metadata := map[string]string{"plain": "x", "userId": "Äbc 1", "a b/c": "", "": "empty", "ü": "1"}
	labels := labelsOf(metadata)
	if labels["e2b/metadata/plain"] != "x" || !maps.Equal(metadataOf(labels), metadata) {
		t.Errorf("%v in labels %v", metadataOf(labels), labels)
	}
}

func TestMetadataOfAList(t *testing.T) {
	// As the SDK encodes it: each key and value, and then the whole.
	inner := url.Values{url.PathEscape("user Id"): {url.PathEscape("a&b=c")}}.Encode()
	labels, err := selected(url.Values{"metadata": {inner}, "template": {"base"}})
	want := map[string]string{labelOf("user Id"): "a&b=c", labelTemplate: "base"}
	if err != nil || !maps.Equal(labels, want) {
		t.Errorf("%v, %v", labels, err)
	}
}

func TestNetwork(t *testing.T) {
	no := false
	for _, c := range []struct {
		n        *network
		internet *bool
		want     *sandbox.Egress
	}{
		{nil, nil, nil},
		{nil, &no, &sandbox.Egress{Mode: sandbox.EgressModeNone}},
		{&network{AllowInternet: &no}, nil, &sandbox.Egress{Mode: sandbox.EgressModeNone}},
		{&network{DenyOut: []string{"192.0.2.1"}}, nil, &sandbox.Egress{Mode: sandbox.EgressModeAll, Deny: []string{"192.0.2.1"}}},
		{&network{DenyOut: []string{allTraffic}, AllowOut: []string{"pypi.org"}}, nil, &sandbox.Egress{Mode: sandbox.EgressModeList, Allow: []string{"pypi.org"}}},
	} {
		if got, err := c.n.egress(c.internet); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v: %+v, %v", c.n, got, err)
		}
	}
	// E2B lets allow win, the firewall deny.
	if _, err := (&network{DenyOut: []string{"192.0.2.0/24"}, AllowOut: []string{"192.0.2.1"}}).egress(nil); !errs.Is(err, errs.Unimplemented) {
		t.Errorf("a hole in what is denied: %v", err)
	}
}

// TestUploadsAreBounded: also those that state no size, and without a remainder.
func TestUploadsAreBounded(t *testing.T) {
	u := uploads{dir: t.TempDir(), max: roomEvery}
	body := func(n int) io.Reader { return bytes.NewReader(make([]byte, n)) }
	if err := u.keep("p", "a", body(roomEvery/2), -1); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{-1, roomEvery} {
		if err := u.keep("p", "b", body(roomEvery), size); !errs.Is(err, errs.ResourceExhausted) {
			t.Errorf("an upload for which there is no room, with the size %d: %v", size, err)
		}
	}
	if entries, err := os.ReadDir(u.dir); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestWatchersAreBounded: those that clients left behind make room when their sandboxes have ended, and a
// sandbox does not take the room of the others.
func TestWatchersAreBounded(t *testing.T) {
	var all watchers
	add := func(sid id.Sandbox) (*watcher, error) {
		w := &watcher{sandbox: sid, cancel: func() {}, ended: make(chan struct{})}
		return w, all.add(newWatcherID(), w)
	}
	var left []*watcher
	for n := range maxWatchers {
		w, err := add(id.Sandbox(fmt.Sprint("sb-", n/maxWatchersOf)))
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, w)
	}
	if _, err := add("sb-new"); !errs.Is(err, errs.ResourceExhausted) {
		t.Errorf("one beyond all: %v", err)
	}
	for _, w := range left[:maxWatchersOf+1] {
		close(w.ended)
	}
	for range maxWatchersOf {
		if _, err := add("sb-new"); err != nil {
			t.Fatalf("in the place of one that has ended: %v", err)
		}
	}
	if _, err := add("sb-new"); !errs.Is(err, errs.ResourceExhausted) {
		t.Errorf("one beyond those of a sandbox: %v", err)
	}
	if _, err := add("sb-other"); err != nil {
		t.Errorf("one of another sandbox: %v", err)
	}
}

// oneSandbox is a store that has a sandbox.
type oneSandbox struct {
	entity.Reader
	sb *sandbox.Sandbox
}

func (s oneSandbox) Get(context.Context, string, schema.ID) (schema.Record, error) {
	rec, err := s.sb.EntityKind().Encode(s.sb)
	if err != nil {
		return schema.Record{}, err
	}
	return *rec, nil
}

// TestSandboxWhoseTimeIsOver: the control plane knows it no more, as envd does not,
// also before it is stopped.
func TestSandboxWhoseTimeIsOver(t *testing.T) {
	begun, second := time.Now().Add(-time.Minute), time.Second
	for _, c := range []struct {
		ttl, resume *time.Duration
		want        errs.Class
	}{{&second, nil, errs.NotFound}, {&second, &second, ""}, {nil, nil, ""}} {
		sb := sandbox.NewSandbox()
		sb.ID, sb.Project, sb.Spec.Template.Image, sb.Spec.TTL, sb.Spec.ResumeTTL = "sb-1", "proj-1", "img", c.ttl, c.resume
		sb.Status.Phase, sb.Status.StartedAt = sandbox.SandboxPhaseRunning, &begun
		_, err := (&caller{store: oneSandbox{sb: sb}}).sandbox(t.Context(), "sb1")
		if c.want == "" && err != nil || c.want != "" && !errs.Is(err, c.want) {
			t.Errorf("time to live %v, after each resume %v: %v", c.ttl, c.resume, err)
		}
	}
}
