package kit

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/schema"
)

var declaredKind = &schema.Kind{Name: "declared", Attrs: []schema.Attr{
	{Path: "spec.node"}, {Path: "spec.template.image"}, {Path: "status.phase"},
}}

func TestCheck(t *testing.T) {
	always := func(schema.Object, schema.Object) bool { return true }
	owns := func(paths ...string) Access { return Access{Owns: Fields(declaredKind, paths...)} }
	shares := func(path, owner string) Access {
		return Access{Shares: []Share{{Field: Field{declaredKind, path}, Owner: owner, Why: "for a test", When: always}}}
	}
	for name, c := range map[string]struct {
		a, b Access
		want string // text of the error; "": none
	}{
		"apart":                  {owns("spec", "labels.x"), owns("status", "labels.y", "name"), ""},
		"the same":               {owns("spec.node"), owns("spec.node"), "declared.spec.node has two writers: a and b"},
		"a part":                 {owns("spec"), owns("spec.template.image"), "declared.spec.template.image has two writers: a and b"},
		"the whole":              {owns("spec.template.image"), owns("spec.template"), "has two writers"},
		"a label":                {owns("labels"), owns("labels.x"), "has two writers"},
		"a share":                {owns("spec"), shares("spec.node", "a"), ""},
		"a share of a part":      {owns("spec.node"), shares("spec", "a"), "b shares declared.spec with a, which does not own it"},
		"a share of nobody":      {owns("spec"), shares("status", "a"), "b shares declared.status with a, which does not own it"},
		"a share with itself":    {Access{}, shares("status", "b"), "b shares declared.status with b, which does not own it"},
		"a share without reason": {owns("spec"), Access{Shares: []Share{{Field: Field{declaredKind, "spec"}, Owner: "a"}}}, "without a reason"},
		"no such attribute":      {owns("spec.nodes"), Access{}, "spec.nodes is not a field of declared"},
		"no such part":           {owns("meta"), Access{}, "meta is not a field of declared"},
		"a part of a name":       {owns("name.x"), Access{}, "name.x is not a field"},
	} {
		t.Run(name, func(t *testing.T) {
			rt := New(Config{})
			rt.Declare("a", c.a)
			rt.Declare("b", c.b)
			err := rt.Check()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestGraph: the graph shows the declarations and the current work.
func TestGraph(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newStore()
		for _, id := range []schema.ID{"bad", "busy", "fine", "later"} {
			m.put("thing", id, thingSpec{})
		}
		rt := newRuntime(t, m, Config{})
		rt.Declare("people", Access{Owns: Fields(thingKind, "spec")})
		leave := make(chan struct{})
		add(t, rt, Controller{Name: "t", Kind: thingKind, Workers: 3,
			Watches: []Source{Map(func(*part) []string { return nil }), Map(func(*thing) []string { return nil })},
			Access:  Access{Owns: Fields(thingKind, "status")},
			Reconcile: func(_ context.Context, key schema.ID) (time.Duration, error) {
				switch key {
				case "bad":
					return 0, errors.New("broken")
				case "busy":
					<-leave
				case "later":
					return time.Hour, nil
				}
				return 0, nil
			}})
		start(t, rt)
		time.Sleep(time.Second)
		synctest.Wait()
		g := rt.Graph()
		if len(g) != 2 || g[0].Name != "people" || g[0].Controller || g[1].Name != "t" || !g[1].Controller {
			t.Fatalf("%+v", g)
		}
		i := g[1]
		if i.Kind != thingKind || len(i.Watches) != 1 || i.Watches[0] != partKind || i.Workers != 3 {
			t.Errorf("%+v", i)
		}
		// "bad" waits for its retry, "later" for its time.
		if want := (Depth{Delayed: 2, Running: 1, Retrying: 1}); i.Queue != want {
			t.Errorf("queue %+v, want %+v", i.Queue, want)
		}
		if i.Runs < 4 || i.Failure == nil || i.Failure.Key != "bad" || i.Failure.Err.Error() != "broken" || time.Since(i.Failure.At) > time.Second {
			t.Errorf("%d runs, failure %+v", i.Runs, i.Failure)
		}
		close(leave)
	})
}

// TestStoppedRuntimeLeavesTheInformers: informers that outlive a runtime no
// longer call it.
func TestStoppedRuntimeLeavesTheInformers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newStore()
		rt := newRuntime(t, m, Config{})
		add(t, rt, Controller{Name: "t", Kind: thingKind, Reconcile: func(context.Context, schema.ID) (time.Duration, error) { return 0, nil }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- rt.Run(ctx) }()
		<-rt.Synced()
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		want := informer.KindStatus{Kind: "thing"}
		if got := rt.cfg.Informers.Status().Kinds; len(got) != 1 || got[0] != want {
			t.Errorf("%+v", got)
		}
	})
}
