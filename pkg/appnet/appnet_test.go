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
