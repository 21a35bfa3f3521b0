package storetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

func testListSelect(t *testing.T, f *fixture) {
	other := f.newProject()
	a := f.stored(func(o *Thing) {
		o.Name, o.Labels = "a", map[string]string{"env": "prod", "tier": "1"}
		o.Spec.Color, o.Spec.Size, o.Spec.Tags = "red", -3, []string{"x", "xy"}
	})
	b := f.stored(func(o *Thing) {
		o.Name, o.Labels = "b", map[string]string{"env": "prod"}
		o.Spec.Color, o.Spec.Size, o.Spec.Tags = "reddish", 0, []string{"y"}
	})
	c := f.stored(func(o *Thing) {
		o.Project, o.Name = other, "a"
		o.Spec.Color, o.Spec.Size, o.Status.Phase = "blue", 10, "busy"
	})
	eq := func(attr string, v []byte) []entity.IndexMatch {
		return []entity.IndexMatch{{Attr: attr, Op: entity.IndexEq, Value: v}}
	}
	for name, c := range map[string]struct {
		q    entity.Query
		want []schema.ID
	}{
		"everything":       {entity.Query{}, sorted(a, b, c)},
		"project":          {entity.Query{Project: f.project}, sorted(a, b)},
		"empty project":    {entity.Query{Project: "proj-nobody"}, sorted()},
		"name":             {entity.Query{Name: "a"}, sorted(a, c)},
		"name in project":  {entity.Query{Name: "a", Project: other}, sorted(c)},
		"label":            {entity.Query{Labels: map[string]string{"env": "prod"}}, sorted(a, b)},
		"labels":           {entity.Query{Labels: map[string]string{"env": "prod", "tier": "1"}}, sorted(a)},
		"other label":      {entity.Query{Labels: map[string]string{"env": "test"}}, sorted()},
		"equal":            {entity.Query{Index: eq("spec.color", []byte("red"))}, sorted(a)},
		"status":           {entity.Query{Index: eq("status.phase", []byte("busy"))}, sorted(c)},
		"one of many":      {entity.Query{Index: eq("spec.tags", []byte("xy"))}, sorted(a)},
		"unknown":          {entity.Query{Index: eq("spec.nonsense", []byte("x"))}, sorted()},
		"two conditions":   {entity.Query{Index: append(eq("spec.color", []byte("red")), eq("spec.tags", []byte("x"))...)}, sorted(a)},
		"contradiction":    {entity.Query{Index: append(eq("spec.color", []byte("red")), eq("spec.color", []byte("blue"))...)}, sorted()},
		"prefix":           {entity.Query{Index: []entity.IndexMatch{{Attr: "spec.color", Op: entity.IndexPrefix, Value: []byte("red")}}}, sorted(a, b)},
		"prefix, many":     {entity.Query{Index: []entity.IndexMatch{{Attr: "spec.tags", Op: entity.IndexPrefix, Value: []byte("x")}}}, sorted(a)},
		"empty prefix":     {entity.Query{Index: []entity.IndexMatch{{Attr: "status.phase", Op: entity.IndexPrefix}}}, sorted(c)},
		"range":            {entity.Query{Index: []entity.IndexMatch{{Attr: "spec.size", Op: entity.IndexRange, Value: Int(-3), Upper: Int(10)}}}, sorted(a, b)},
		"range from":       {entity.Query{Index: []entity.IndexMatch{{Attr: "spec.size", Op: entity.IndexRange, Value: Int(0)}}}, sorted(b, c)},
		"range to":         {entity.Query{Index: []entity.IndexMatch{{Attr: "spec.size", Op: entity.IndexRange, Upper: Int(0)}}}, sorted(a)},
		"index in project": {entity.Query{Project: f.project, Index: []entity.IndexMatch{{Attr: "spec.size", Op: entity.IndexRange, Value: Int(0)}}}, sorted(b)},
	} {
		if got := f.list(c.q); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}

	// Indexes follow changes of either half.
	a.Spec.Color, a.Spec.Tags, a.Labels = "green", nil, nil
	if err := entity.UpdateSpec(t.Context(), f, a); err != nil {
		t.Fatal(err)
	}
	c.Status.Phase = ""
	if err := entity.UpdateStatus(t.Context(), f, c); err != nil {
		t.Fatal(err)
	}
	if err := entity.Delete(t.Context(), f, b); err != nil {
		t.Fatal(err)
	}
	for name, q := range map[string]entity.Query{
		"old color": {Index: eq("spec.color", []byte("red"))}, "old tag": {Index: eq("spec.tags", []byte("x"))},
		"old label": {Labels: map[string]string{"env": "prod"}}, "old phase": {Index: eq("status.phase", []byte("busy"))},
		"deleted": {Index: eq("spec.color", []byte("reddish"))}, "deleted name": {Name: "b"},
	} {
		if got := f.list(q); len(got) != 0 {
			t.Errorf("%s still finds %v", name, got)
		}
	}
	f.equal("new color", f.list(entity.Query{Index: eq("spec.color", []byte("green"))}), sorted(a))

	_, err := f.List(t.Context(), entity.Query{Kind: "nonsense"})
	f.fails(err, errs.InvalidArgument)
	_, err = f.List(t.Context(), entity.Query{Kind: "thing", Limit: -1})
	f.fails(err, errs.InvalidArgument)
	_, err = f.List(t.Context(), entity.Query{Kind: "thing", Index: []entity.IndexMatch{{Attr: "spec.color", Op: 77}}})
	f.fails(err, errs.InvalidArgument)
}

// testListOneRevision: all pages show one revision, whatever changes between
// them.
func testListOneRevision(t *testing.T, f *fixture) {
	var want []schema.Record
	things := map[schema.ID]*Thing{}
	for i := range 20 {
		o := f.stored(func(o *Thing) {
			o.ID = schema.ID(fmt.Sprintf("thing-%02d", i))
			o.Spec.Color = [...]string{"red", "blue"}[i%2]
		})
		things[o.ID] = o
	}
	red := []entity.IndexMatch{{Attr: "spec.color", Op: entity.IndexEq, Value: []byte("red")}}
	ordered, queue := &entity.Order{Index: "queue"}, &entity.Order{Index: "queue", Equal: [][]byte{[]byte("red")}}
	for _, q := range []entity.Query{
		{Kind: "thing", Limit: 3}, {Kind: "thing", Limit: 3, Index: red},
		{Kind: "thing", Limit: 3, Order: ordered}, {Kind: "thing", Limit: 3, Order: queue},
	} {
		all := q
		all.Limit = 0
		whole, err := f.List(t.Context(), all)
		if err != nil {
			t.Fatal(err)
		}
		want = whole.Records
		var got []schema.Record
		for n := 0; ; n++ {
			page, err := f.List(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if page.Token != whole.Token {
				t.Errorf("token of page %d: %v, want %v", n, page.Token, whole.Token)
			}
			got = append(got, page.Records...)
			if q.Cursor = page.Cursor; q.Cursor == "" {
				break
			}
			f.disturb(things, n)
		}
		if len(got) != len(want) {
			t.Errorf("got %v, want %v", ids(got), ids(want))
			continue
		}
		for i := range got {
			f.equal("record", got[i], want[i])
		}
	}
}

// disturb changes, deletes and creates entities before and after a position.
func (f *fixture) disturb(things map[schema.ID]*Thing, n int) {
	f.t.Helper()
	for i := range 20 {
		id := schema.ID(fmt.Sprintf("thing-%02d", i))
		o, ok := things[id]
		switch {
		case !ok && (i+n)%3 == 0:
			things[id] = f.stored(func(o *Thing) { o.ID = id })
		case ok && (i+n)%5 == 0:
			if err := entity.Delete(f.t.Context(), f, o); err != nil {
				f.t.Fatal(err)
			}
			delete(things, id)
		case ok && (i+n)%5 == 1:
			o.Spec.Color, o.Spec.Size = [...]string{"red", "blue"}[n%2], int64((i*7+n*3)%5)
			if err := entity.UpdateSpec(f.t.Context(), f, o); err != nil {
				f.t.Fatal(err)
			}
		case ok && (i+n)%5 == 2:
			o.Status.Count++
			if err := entity.UpdateStatus(f.t.Context(), f, o); err != nil {
				f.t.Fatal(err)
			}
		}
	}
}

// testListOrder: a listing by a composite index has its order, bounds and
// pages.
func testListOrder(t *testing.T, f *fixture) {
	add := func(id, color string, size int64, serial string) {
		f.stored(func(o *Thing) {
			o.ID, o.Spec.Color, o.Spec.Size, o.Spec.Serial = schema.ID("thing-"+id), color, size, serial
		})
	}
	add("e", "blue", 2, "")
	add("d", "blue", 7, "")
	add("c", "red", 5, "s2")
	add("b", "red", 5, "s1")
	add("a", "red", 5, "")
	add("g", "red", -1, "s3")
	add("f", "reddish", 9, "")
	add("h", "red", 8, "x")
	key := func(parts ...any) [][]byte {
		var out [][]byte
		for _, p := range parts {
			switch p := p.(type) {
			case string:
				out = append(out, []byte(p))
			case int:
				out = append(out, Int(int64(p)))
			default:
				out = append(out, nil)
			}
		}
		return out
	}
	for name, c := range map[string]struct {
		q    entity.Query
		want string
	}{
		"everything":          {entity.Query{Order: &entity.Order{}}, "d e h a b c g f"},
		"first part":          {entity.Query{Order: &entity.Order{Equal: key("red")}}, "h a b c g"},
		"two parts":           {entity.Query{Order: &entity.Order{Equal: key("red", 5)}}, "a b c"},
		"all parts":           {entity.Query{Order: &entity.Order{Equal: key("red", 5, "s1")}}, "b"},
		"absent":              {entity.Query{Order: &entity.Order{Equal: key("red", 5, nil)}}, "a"},
		"nothing":             {entity.Query{Order: &entity.Order{Equal: key("green")}}, ""},
		"from":                {entity.Query{Order: &entity.Order{Equal: key("red", 5), Lower: []byte("s1")}}, "b c"},
		"to, with the absent": {entity.Query{Order: &entity.Order{Equal: key("red", 5), Upper: []byte("s2")}}, "a b"},
		"descending, from":    {entity.Query{Order: &entity.Order{Equal: key("red"), Lower: Int(5)}}, "h a b c"},
		"descending, to":      {entity.Query{Order: &entity.Order{Equal: key("red"), Upper: Int(8)}}, "a b c g"},
		"descending, between": {entity.Query{Order: &entity.Order{Equal: key("red"), Lower: Int(-1), Upper: Int(5)}}, "g"},
		"range of the first":  {entity.Query{Order: &entity.Order{Lower: []byte("red"), Upper: []byte("reddish")}}, "h a b c g"},
		"and another condition": {entity.Query{Order: &entity.Order{}, Index: []entity.IndexMatch{{Attr: "spec.size", Op: entity.IndexEq, Value: Int(5)}}},
			"a b c"},
		"and a project": {entity.Query{Order: &entity.Order{}, Project: "proj-nobody"}, ""},
	} {
		for _, limit := range []int{0, 1, 3} {
			q := c.q
			q.Kind, q.Limit = "thing", limit
			order := *q.Order
			order.Index = "queue"
			q.Order = &order
			var got []string
			for {
				page, err := f.List(t.Context(), q)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				for _, r := range page.Records {
					got = append(got, strings.TrimPrefix(string(r.ID), "thing-"))
				}
				if q.Cursor = page.Cursor; q.Cursor == "" {
					break
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%s, %d at a time: got %v, want %s", name, limit, got, c.want)
			}
		}
	}
	page, err := f.List(t.Context(), entity.Query{Kind: "thing", Order: &entity.Order{Index: "queue"}, Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	for name, q := range map[string]entity.Query{
		"unknown index":           {Kind: "thing", Order: &entity.Order{Index: "nonsense"}},
		"too many values":         {Kind: "thing", Order: &entity.Order{Index: "queue", Equal: make([][]byte, 4)}},
		"bound behind the last":   {Kind: "thing", Order: &entity.Order{Index: "queue", Equal: make([][]byte, 3), Lower: []byte("x")}},
		"cursor of another":       {Kind: "thing", Order: &entity.Order{Index: "queue", Equal: key("red")}, Cursor: page.Cursor},
		"index of another kind":   {Kind: "node", Order: &entity.Order{Index: "queue"}},
		"cursor without an order": {Kind: "thing", Cursor: page.Cursor},
	} {
		if _, err := f.List(t.Context(), q); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// testListQueue: many workers pop a queue in order, each task once.
func testListQueue(t *testing.T, f *fixture) {
	const tasks, workers = 60, 6
	for i := range tasks {
		f.stored(func(o *Thing) { o.Spec.Color, o.Spec.Size = "queued", int64(i%7) })
	}
	var mu sync.Mutex
	taken := map[schema.ID]bool{}
	var sizes []int64
	pop := func() (*Thing, error) {
		page, err := f.List(t.Context(), entity.Query{Kind: "thing", Order: &entity.Order{Index: "queue", Equal: [][]byte{[]byte("queued")}}, Limit: 1})
		if err != nil || len(page.Records) == 0 {
			return nil, err
		}
		o, err := entity.Decode[Thing](&page.Records[0])
		if err != nil {
			return nil, err
		}
		o.Spec.Color = "done"
		return o, entity.UpdateSpec(t.Context(), f, o)
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				o, err := pop()
				if errs.Is(err, errs.Conflict) {
					continue // another worker was faster
				}
				if err != nil {
					t.Error(err)
				}
				if err != nil || o == nil {
					return
				}
				mu.Lock()
				if taken[o.ID] {
					t.Errorf("%s was taken twice", o.ID)
				}
				taken[o.ID] = true
				sizes = append(sizes, o.Spec.Size)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(taken) != tasks {
		t.Errorf("%d of %d tasks were taken", len(taken), tasks)
	}
	// The tasks were taken in order, except those that were under way at the
	// same time.
	for i, n := range sizes {
		if later := sizes[min(i+workers, len(sizes)):]; len(later) > 0 && slices.Max(later) > n {
			t.Fatalf("order %v", sizes)
		}
	}
}

func testListCursor(t *testing.T, f *fixture) {
	for range 3 {
		f.stored()
	}
	page, err := f.List(t.Context(), entity.Query{Kind: "thing", Limit: 2})
	if err != nil || len(page.Records) != 2 || page.Cursor == "" {
		t.Fatalf("first page: %+v, %v", page, err)
	}
	_, err = f.List(t.Context(), entity.Query{Kind: "thing", Limit: 2, Name: "x", Cursor: page.Cursor})
	f.fails(err, errs.InvalidArgument)
	_, err = f.List(t.Context(), entity.Query{Kind: "thing", Cursor: "nonsense"})
	f.fails(err, errs.InvalidArgument)
	last, err := f.List(t.Context(), entity.Query{Kind: "thing", Limit: 2, Cursor: page.Cursor})
	if err != nil || len(last.Records) != 1 || last.Cursor != "" {
		t.Fatalf("last page: %+v, %v", last, err)
	}
	exact, err := f.List(t.Context(), entity.Query{Kind: "thing", Limit: 3})
	if err != nil || len(exact.Records) != 3 || exact.Cursor != "" {
		t.Fatalf("page that fits: %+v, %v", exact, err)
	}
}
