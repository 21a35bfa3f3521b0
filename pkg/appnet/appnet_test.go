package appnet

import (
	"reflect"
	"slices"
	"testing"
)

func table() *Table {
	return New([]App{
		{Project: "p", Name: "shop", Services: []string{"web", "worker"}, Members: []Member{
			{Sandbox: "shop-web", Service: "web", Ready: true}, {Sandbox: "shop-old", Service: "web"},
			{Sandbox: "shop-w1", Service: "worker", Ready: true}, {Sandbox: "shop-w2", Service: "worker", Ready: true}, {Sandbox: "shop-task"},
		}},
		{Project: "p", Name: "db", Services: []string{"web"}, Restricted: true, From: []string{"shop"}, Members: []Member{{Sandbox: "db-1", Service: "web"}}},
		{Project: "p", Name: "blog", Services: []string{"web"}, Members: []Member{{Sandbox: "blog-1", Service: "web", Ready: true}}},
		{Project: "q", Name: "shop", Services: []string{"web"}, Restricted: true, From: []string{"shop", "blog"}, Members: []Member{{Sandbox: "other", Service: "web", Ready: true}}},
	})
}

func TestFind(t *testing.T) {
	for _, c := range []struct {
		from, name string
		ready      []string
		want       Answer
	}{
		{"shop-web", "worker.shop.internal", []string{"shop-w1", "shop-w2"}, Known},
		{"blog-1", "shop.internal", []string{"shop-web"}, Known},
		{"blog-1", "web.shop.internal", []string{"shop-web"}, Known},
		{"shop-task", "blog.internal", []string{"blog-1"}, Known},
		{"shop-web", "db.internal", nil, Known}, // not ready
		{"other", "shop.internal", []string{"other"}, Known},
		{"other", "blog.internal", nil, Missing}, // of another project
		{"blog-1", "worker.blog.internal", nil, Missing},
		{"blog-1", "nothing.internal", nil, Missing},
		{"blog-1", ".internal", nil, Missing},
		{"blog-1", "internal", nil, Foreign},
		{"blog-1", "host.zone.project.internal", nil, Foreign},
		{"blog-1", "bucket.worker.shop.internal", []string{"shop-w1", "shop-w2"}, Known},
		{"blog-1", "a.b.web.shop.internal", []string{"shop-web"}, Known},
		{"other", "a.web.blog.internal", nil, Foreign},
		{"blog-1", "web.shop.internal.example.com", nil, Foreign},
		{"agent", "web.shop.internal", nil, Foreign}, // of no app
	} {
		ready, got := table().Find(c.from, c.name)
		if got != c.want || !slices.Equal(ready, c.ready) {
			t.Errorf("%s asks for %s: %v, %q; want %v, %q", c.from, c.name, got, ready, c.want, c.ready)
		}
	}
}

func TestReaches(t *testing.T) {
	tb := table()
	got := map[string][]string{}
	for group, members := range tb.Reaches() {
		slices.Sort(members)
		got[tb.apps[group-1].Project+"/"+tb.apps[group-1].Name] = members
	}
	shop := []string{"shop-old", "shop-task", "shop-w1", "shop-w2", "shop-web"}
	want := map[string][]string{
		"p/shop": append([]string{"blog-1", "db-1"}, shop...),
		"p/db":   append([]string{"blog-1", "db-1"}, shop...), // what restricts others does not restrict itself
		"p/blog": append([]string{"blog-1"}, shop...),
		"q/shop": {"other"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("reaches %v, want %v", got, want)
	}
	if _, ok := tb.Group("agent"); ok {
		t.Error("a sandbox of no app has a group")
	}
}

// spread is the table of a server whose project p has sandboxes on two runners. quiet permits no app that is on one.
func spread() *Table {
	return New([]App{
		{Project: "p", Name: "shop", Services: []string{"web", "worker"}, Members: []Member{
			{Sandbox: "shop-web", Service: "web", Ready: true, Node: "edge"}, {Sandbox: "shop-here", Service: "worker", Ready: true},
			{Sandbox: "shop-there", Service: "worker", Ready: true, Node: "other"}, {Sandbox: "shop-task"},
		}},
		{Project: "p", Name: "db", Services: []string{"web"}, Restricted: true, From: []string{"shop", "blog"}, Members: []Member{
			{Sandbox: "db-1", Service: "web", Ready: true},
		}},
		{Project: "p", Name: "quiet", Services: []string{"web"}, Restricted: true, From: []string{"blog"}, Members: []Member{{Sandbox: "quiet-1", Service: "web", Ready: true}}},
		{Project: "p", Name: "blog", Services: []string{"web"}, Members: []Member{{Sandbox: "blog-1", Service: "web", Ready: true, Node: "other"}}},
		{Project: "q", Name: "shop", Services: []string{"web"}, Members: []Member{{Sandbox: "foreign", Service: "web", Ready: true}}},
	})
}

// TestFindElsewhere: a name has sandboxes of other nodes only if it has none here.
func TestFindElsewhere(t *testing.T) {
	for name, want := range map[string]string{"shop.internal": "shop-web", "worker.shop.internal": "shop-here", "blog.internal": "blog-1"} {
		if ready, got := spread().Find("shop-here", name); got != Known || !slices.Equal(ready, []string{want}) {
			t.Errorf("%s: %v, %q; want %s", name, got, ready, want)
		}
	}
}

func TestPermits(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"shop-web", "db-1", true},
		{"shop-web", "shop-there", true},
		{"blog-1", "quiet-1", true},
		{"shop-web", "quiet-1", false},
		{"shop-web", "foreign", false},
		{"foreign", "shop-web", false},
		{"shop-web", "agent", false},
		{"agent", "shop-web", false},
	} {
		if got := spread().Permits(c.from, c.to); got != c.want {
			t.Errorf("%s to %s: %v", c.from, c.to, got)
		}
	}
}

// TestForAnotherNode: a runner learns of its own sandboxes, and of what they may connect to, and nothing else.
func TestForAnotherNode(t *testing.T) {
	got := spread().For("edge", "server")
	want := []App{
		{Project: "p", Name: "shop", Services: []string{"web", "worker"}, Members: []Member{
			{Sandbox: "shop-web", Service: "web", Ready: true}, {Sandbox: "shop-here", Service: "worker", Ready: true, Node: "server"},
			{Sandbox: "shop-there", Service: "worker", Ready: true, Node: "other"},
		}},
		{Project: "p", Name: "db", Services: []string{"web"}, Restricted: true, From: []string{"shop"}, Members: []Member{
			{Sandbox: "db-1", Service: "web", Ready: true, Node: "server"},
		}},
		{Project: "p", Name: "blog", Services: []string{"web"}, Members: []Member{{Sandbox: "blog-1", Service: "web", Ready: true, Node: "other"}}},
	}
	for i := range got {
		if len(got[i].From) == 0 {
			got[i].From = nil
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("a runner gets\n%+v, want\n%+v", got, want)
	}
	if got := spread().For("idle", "server"); len(got) > 0 {
		t.Errorf("a runner without sandboxes of apps gets %+v", got)
	}
}

// TestStandIns: sandboxes of other nodes, and only these, have addresses of their own, which they keep.
func TestStandIns(t *testing.T) {
	first := New(New(nil).WithStandIns(spread().Apps()))
	seen := map[string]bool{}
	for _, sandbox := range []string{"shop-web", "shop-there", "blog-1"} {
		a := first.StandIn(sandbox)
		if back, ok := first.At(a); !StandIns.Contains(a) || seen[a.String()] || !ok || back != sandbox {
			t.Errorf("%s has the address %s, which is that of %q", sandbox, a, back)
		}
		seen[a.String()] = true
	}
	if a := first.StandIn("shop-here"); a.IsValid() {
		t.Errorf("a sandbox of this node has the stand-in %s", a)
	}
	apps := spread().Apps()
	apps[3].Members[0].Sandbox = "blog-2"
	second := New(first.WithStandIns(apps))
	if a := second.StandIn("shop-web"); a != first.StandIn("shop-web") {
		t.Errorf("a sandbox that stays has %s, not %s", a, first.StandIn("shop-web"))
	}
	if a := second.StandIn("blog-2"); !a.IsValid() || seen[a.String()] {
		t.Errorf("a new sandbox has the address %s of another one", a)
	}
	if spread().StandIn("shop-web").IsValid() {
		t.Error("the table that was given has changed")
	}
}
