package ingress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

func testRegistry() *registry {
	return newRegistry(func(context.Context, string) (net.Conn, error) { return nil, errors.New("no network here") }, newMetrics(nil))
}

func TestMatch(t *testing.T) {
	s := &State{
		Apps: []App{{ID: "a", Name: "Alpha", Created: 5}, {ID: "b", Name: "beta"}, {ID: "c", Name: "gamma"}, {ID: "d", Name: "alpha", Created: 9}},
		Routes: []Route{
			{Host: "example.com", Path: "/", App: "a"},
			{Host: "example.com", Path: "/api", App: "b"},
			{Host: "example.com", Path: "/api/deep/", App: "c"},
			{Host: "only.example.com", Path: "/here", App: "b"},
			{Host: "*.example.com", Path: "/", App: "c"},
			{Host: "*.eu.example.com", Path: "/", App: "b"},
			{Host: "beta.localhost", Path: "/", App: "c"},
			{Host: "*", Path: "/", App: "d"},
			{Host: "orphan.com", Path: "/", App: "gone"},
		},
	}
	tb := newTable(s, testRegistry())
	for _, c := range []struct{ host, path, want string }{
		{"example.com", "/", "a"},
		{"EXAMPLE.com:8080", "/x", "a"},
		{"example.com.", "/x", "a"},
		{"example.com", "/api", "b"},
		{"example.com", "/api/", "b"},
		{"example.com", "/api/x", "b"},
		{"example.com", "/apix", "a"},
		{"example.com", "/api/deep", "c"},
		{"example.com", "/api/deep/x", "c"},
		{"example.com", "/api/deeper", "b"},
		{"x.example.com", "/", "c"},
		{"x.y.example.com", "/", "c"},
		{"x.eu.example.com", "/", "b"},
		{"eu.example.com", "/", "c"},
		{"only.example.com", "/here/x", "b"},
		{"only.example.com", "/elsewhere", "c"}, // falls through to the wildcard
		{"alpha.localhost", "/", "a"},           // the older of two
		{"ALPHA.localhost:80", "/", "a"},
		{"gamma.localhost", "/x", "c"},
		{"beta.localhost", "/", "c"}, // a route wins over the local name
		{"nobody.localhost", "/", "d"},
		{"orphan.com", "/", "d"},
		{"127.0.0.1:8080", "/", "d"},
		{"[::1]:8080", "/", "d"},
		{"", "/", "d"},
	} {
		tg := tb.match(normalHost(c.host), c.path, []string{".localhost"})
		got := ""
		if tg != nil {
			got = string(tg.app.id)
		}
		if got != c.want {
			t.Errorf("%s%s leads to %q, want %q", c.host, c.path, got, c.want)
		}
	}
	s.Routes = s.Routes[:7]
	if tg := newTable(s, testRegistry()).match("nobody.org", "/", nil); tg != nil {
		t.Errorf("an unknown host leads to %v", tg.app.id)
	}
}

func TestNormalHost(t *testing.T) {
	for in, want := range map[string]string{
		"a.b": "a.b", "A.b:80": "a.b", "a.b.:80": "a.b", "[::1]:80": "::1", "[::1]": "::1", "[FE80::1]": "fe80::1", "": "", ":80": "",
	} {
		if got := normalHost(in); got != want {
			t.Errorf("normalHost(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestPick(t *testing.T) {
	s := &State{Apps: []App{{ID: "a", Name: "a", Versions: []Share{{Version: "v1", Weight: 100}}}}}
	for _, id := range []schema.ID{"s1", "s2", "s3"} {
		s.Sandboxes = append(s.Sandboxes, Sandbox{ID: id, App: "a", Version: "v1", Service: "web"})
	}
	s.Sandboxes = append(s.Sandboxes,
		Sandbox{ID: "other-service", App: "a", Version: "v1", Service: "worker"},
		Sandbox{ID: "other-version", App: "a", Version: "v0", Service: "web"})
	tb := newTable(s, testRegistry())
	tg := tb.match("a.localhost", "/", []string{".localhost"})
	if tg.ready() != 3 {
		t.Fatalf("%d sandboxes", tg.ready())
	}
	all := tg.groups[0].backends
	busy, free := all[0], all[1:]
	busy.inflight.Store(100)
	for range 150 {
		b, _ := tg.pick(nil)
		if b == busy {
			t.Fatal("the busiest sandbox was chosen")
		}
		b.inflight.Add(1)
	}
	// Power of two choices keeps the load even.
	if d := free[0].inflight.Load() - free[1].inflight.Load(); d < -40 || d > 40 {
		t.Errorf("uneven: %d and %d", free[0].inflight.Load(), free[1].inflight.Load())
	}
	free[0].markDown()
	free[1].inflight.Store(1000)
	for range 50 {
		if b, _ := tg.pick(nil); b == free[0] {
			t.Fatal("a sandbox that is down was chosen")
		}
	}
	busy.markDown()
	free[1].markDown()
	if b, _ := tg.pick(nil); b == nil {
		t.Error("with all down, none was chosen")
	}
	if got, _ := tg.pick([]*backend{busy, free[1]}); got != free[0] {
		t.Errorf("with the others tried, chose %v", got)
	}
	if got, _ := tg.pick(all); got != nil {
		t.Errorf("with all tried, chose %v", got)
	}
	if free[0].down(time.Now().Add(2 * downTime)) {
		t.Error("down for longer than said")
	}
}

// TestPickByWeight: versions get requests by their weights, a version without a ready sandbox gets none, and the host of
// a preview leads to one version alone.
func TestPickByWeight(t *testing.T) {
	s := &State{Apps: []App{{ID: "a", Name: "a", Versions: []Share{{Version: "v1", Weight: 90}, {Version: "v2", Weight: 10}, {Version: "v3", Preview: "try"}}}},
		Routes: []Route{{ID: "r", Host: "try.example.com", Path: "/", App: "a", Service: "web", Preview: "try"}, {ID: "r2", Host: "gone.example.com", Path: "/", App: "a", Service: "web", Preview: "gone"}}}
	for _, v := range []schema.ID{"v1", "v1", "v1", "v2", "v3", "v4"} {
		s.Sandboxes = append(s.Sandboxes, Sandbox{ID: schema.ID(fmt.Sprint("s", len(s.Sandboxes))), App: "a", Version: v, Service: "web"})
	}
	count := func(host string, tried ...*backend) map[schema.ID]int {
		tg := newTable(s, testRegistry()).match(host, "/", []string{".localhost"})
		n := map[schema.ID]int{}
		for range 10_000 {
			b, _ := tg.pick(tried)
			n[b.Version]++
		}
		return n
	}
	if n := count("a.localhost"); n["v2"] < 800 || n["v2"] > 1200 || n["v1"]+n["v2"] != 10_000 {
		t.Errorf("90 and 10 percent: %v", n)
	}
	if n := count("try.example.com"); n["v3"] != 10_000 {
		t.Errorf("a preview: %v", n)
	}
	if tg := newTable(s, testRegistry()).match("gone.example.com", "/", nil); tg != nil {
		t.Errorf("a preview that has ended leads to %+v", tg)
	}
	s.Sandboxes = s.Sandboxes[3:]
	if n := count("a.localhost"); n["v2"] != 10_000 {
		t.Errorf("the other version has no sandbox: %v", n)
	}
	tg := newTable(s, testRegistry()).match("a.localhost", "/", []string{".localhost"})
	b, _ := tg.pick(nil)
	if other, _ := tg.pick([]*backend{b}); other != nil || tg.version != "v1" {
		t.Errorf("all were tried: %+v", tg)
	}
}

func TestStateFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "table") // saveState makes the directory
	if _, err := loadState(path); !errs.Is(err, errs.NotFound) {
		t.Errorf("missing file: %v", err)
	}
	want := oneApp("10.0.0.1:80")
	want.Token.Epoch, want.Token.Revision = "e", 7
	want.Routes = []Route{{ID: "r", Host: "*", Path: "/", App: "app-1", Service: "web"}}
	for range 2 {
		if err := saveState(path, want); err != nil {
			t.Fatal(err)
		}
	}
	got, err := loadState(path)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("loaded %+v, %v", got, err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range good {
		bad := append([]byte(nil), good...)
		bad[i] ^= 1
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadState(path); !errs.Is(err, errs.Corrupt) {
			t.Fatalf("byte %d changed: %v", i, err)
		}
	}
	for n := range good {
		if err := os.WriteFile(path, good[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadState(path); !errs.Is(err, errs.Corrupt) {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestTableIgnoresRoutesOfHostsOfOtherProjects: the oldest route of a host decides
// whose it is, in whatever order routes are listed.
func TestTableIgnoresRoutesOfHostsOfOtherProjects(t *testing.T) {
	s := &State{
		Apps: []App{{ID: "mine", Name: "mine", Versions: []Share{{Version: "v", Weight: 100}}}, {ID: "theirs", Name: "theirs", Versions: []Share{{Version: "v", Weight: 100}}}},
		Routes: []Route{
			{ID: "r1", Host: "a.example.com", Path: "/", App: "theirs", Project: "p2", Created: 20},
			{ID: "r2", Host: "*.example.com", Path: "/", App: "mine", Project: "p1", Created: 10},
			{ID: "r3", Host: "*.example.com", Path: "/api", App: "theirs", Project: "p2", Created: 21},
			{ID: "r4", Host: "b.example.com", Path: "/", App: "mine", Project: "p1", Created: 22},
			{ID: "r5", Host: "example.com", Path: "/", App: "theirs", Project: "p2", Created: 23},
			{ID: "r6", Host: "*", Path: "/", App: "theirs", Project: "p2", Created: 24},
			{ID: "r7", Host: "*", Path: "/x", App: "mine", Project: "p1", Created: 25},
		},
	}
	tb := newTable(s, testRegistry())
	for url, want := range map[string]schema.ID{
		"a.example.com/": "mine", "z.example.com/api": "mine", "b.example.com/": "mine", "example.com/": "theirs", "other/x": "theirs",
	} {
		host, path, _ := strings.Cut(url, "/")
		if tg := tb.match(host, "/"+path, []string{".localhost"}); tg == nil || tg.app.id != want {
			t.Errorf("%s: %+v", url, tg)
		}
	}
}
