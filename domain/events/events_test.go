package events

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/event"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// env is a store with two projects.
type env struct {
	*testing.T
	Service
	projects map[string]schema.ID
	last     map[string]int64
}

func newEnv(t *testing.T) *env {
	t.Helper()
	e := &env{T: t, Service: Service{pgtest.Store(t, api.Kinds()...)}, projects: map[string]schema.ID{}, last: map[string]int64{}}
	for _, name := range []string{projects.Default, "other"} {
		if err := projects.Ensure(t.Context(), e.Store, name); err != nil {
			t.Fatal(err)
		}
		var err error
		if e.projects[name], err = projects.Find(t.Context(), e.Store, name); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// add makes events of a project, and returns the last.
func (e *env) add(project, eventType, subject string, n int) *event.Event {
	e.Helper()
	var o *event.Event
	for range n {
		e.last[project]++
		o = event.NewEvent()
		o.Project = e.projects[project]
		o.Spec = event.EventSpec{
			Project: string(o.Project), Number: e.last[project], Type: eventType, SubjectKind: "sandbox", Subject: subject, OccurredAt: time.Now(), Body: "{}",
		}
		if err := entity.Create(e.Context(), e.Store, o); err != nil {
			e.Fatal(err)
		}
	}
	return o
}

func numbers(list []*event.Event) string {
	var out []string
	for _, o := range list {
		out = append(out, strconv.FormatInt(o.Spec.Number, 10))
	}
	return strings.Join(out, " ")
}

func TestList(t *testing.T) {
	e := newEnv(t)
	e.add("other", "sandbox.ended", "sb-9", 3)
	e.add(projects.Default, "sandbox.running", "sb-1", 1)     // 1
	e.add(projects.Default, "sandbox.ended", "sb-1", 1)       // 2
	e.add(projects.Default, "execution.running", "exec-1", 1) // 3
	e.add(projects.Default, "sandbox.running", "sb-2", 2)     // 4, 5
	all, _, err := e.List(t.Context(), Query{}, 10, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		q    Query
		want string
	}{
		{Query{}, "5 4 3 2 1"}, {Query{Project: "other"}, "3 2 1"}, {Query{Type: "sandbox.*"}, "5 4 2 1"}, {Query{Type: "*"}, "5 4 3 2 1"},
		{Query{Type: "sandbox.ended"}, "2"}, {Query{Type: "snapshot.*"}, ""}, {Query{Subject: "sb-1"}, "2 1"},
		{Query{Subject: "sb-1", Type: "sandbox.ended"}, "2"}, {Query{Subject: "sb-9"}, ""}, {Query{Since: all[2].CreatedAt}, "5 4 3"},
		{Query{Since: time.Now().Add(time.Hour)}, ""},
	} {
		var pages []*event.Event
		for cursor := ""; ; {
			list, next, err := e.List(t.Context(), c.q, 2, cursor)
			if err != nil || len(list) > 2 {
				t.Fatalf("%+v: %d events, %v", c.q, len(list), err)
			}
			pages = append(pages, list...)
			if cursor = next; next == "" {
				break
			}
		}
		if got := numbers(pages); got != c.want {
			t.Errorf("%+v: %q, want %q", c.q, got, c.want)
		}
	}
	for name, err := range map[string]error{
		"type": second(e.List(t.Context(), Query{Type: "sandbox"}, 1, "")), "cursor": second(e.List(t.Context(), Query{}, 1, "x")),
		"negative cursor": second(e.List(t.Context(), Query{}, 1, "-1")),
	} {
		if !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := e.List(t.Context(), Query{Project: "none"}, 1, ""); !errs.Is(err, errs.NotFound) {
		t.Error(err)
	}
}

func second(_ []*event.Event, _ string, err error) error { return err }

// following is a Follow that goes on.
type following struct {
	got chan *event.Event
	end chan error
}

func (e *env) following(q Query, after string) *following {
	e.Helper()
	f := &following{got: make(chan *event.Event, 10_000), end: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	begun := make(chan struct{}, 1)
	go func() {
		first := true
		f.end <- e.Follow(ctx, q, after, func(list []*event.Event) error {
			if first {
				first = false
				begun <- struct{}{}
			}
			for _, o := range list {
				f.got <- o
			}
			return nil
		})
	}()
	e.Cleanup(func() {
		cancel()
		if err := wait.Receive(e, "the end", f.end); !errs.Is(err, errs.Canceled) && ctx.Err() == nil {
			e.Error(err)
		}
	})
	wait.Receive(e, "it begins", begun)
	return f
}

// want fails unless the next events have these numbers.
func (f *following) want(e *env, list ...int64) {
	e.Helper()
	for _, n := range list {
		if o := wait.Receive(e, fmt.Sprintf("event %d", n), f.got); o.Spec.Number != n || o.Project != e.projects[projects.Default] {
			e.Fatalf("event %d of %s, want %d", o.Spec.Number, o.Project, n)
		}
	}
}

// What exists after an event comes first, then what comes, each once and in order.
func TestFollow(t *testing.T) {
	e := newEnv(t)
	first := e.add(projects.Default, "sandbox.running", "sb-1", 1)
	e.add("other", "sandbox.running", "sb-9", 1)
	now := e.following(Query{}, "")
	e.add(projects.Default, "execution.running", "exec-1", 1)
	e.add(projects.Default, "sandbox.ended", "sb-1", 1)
	after := e.following(Query{}, string(first.ID))
	ends := e.following(Query{Type: "*", Subject: "sb-1"}, string(first.ID))
	since := e.following(Query{Since: time.Unix(0, 0)}, "")
	e.add("other", "sandbox.ended", "sb-9", 1)
	e.add(projects.Default, "sandbox.ended", "sb-2", 2)
	e.add(projects.Default, "sandbox.ended", "sb-1", 1)
	now.want(e, 2, 3, 4, 5, 6)
	after.want(e, 2, 3, 4, 5, 6)
	ends.want(e, 3, 6)
	since.want(e, 1, 2, 3, 4, 5, 6)
}

// A long backlog is read in parts.
func TestFollowReadsABacklog(t *testing.T) {
	e := newEnv(t)
	first := e.add(projects.Default, "sandbox.running", "sb-1", 1)
	const n = event.MaxPage + 10
	var ops []entity.Op
	for range n {
		e.last[projects.Default]++
		o := event.NewEvent()
		o.Project = first.Project
		o.Spec = first.Spec
		o.Spec.Number = e.last[projects.Default]
		op, err := entity.CreateOp(o)
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, op)
	}
	for part := range slices.Chunk(ops, 500) {
		if _, err := e.Store.Txn(t.Context(), entity.TxnRequest{Ops: part}); err != nil {
			t.Fatal(err)
		}
	}
	f := e.following(Query{}, string(first.ID))
	for i := range int64(n) {
		f.want(e, i+2)
	}
}

// Whoever knows an event that is not kept any more is told, and not given others as if
// they were the next.
func TestFollowTellsOfALoss(t *testing.T) {
	e := newEnv(t)
	first := e.add(projects.Default, "sandbox.running", "sb-1", 1)
	e.add(projects.Default, "sandbox.running", "sb-1", 4)
	foreign := e.add("other", "sandbox.running", "sb-9", 1)
	if err := e.Expire(t.Context(), e.projects[projects.Default], time.Time{}, 2); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{string(first.ID), string(foreign.ID), "evt-none"} {
		if err := e.Follow(t.Context(), Query{}, id, nil); !errs.Is(err, errs.Compacted) || errs.HintOf(err) == "" {
			t.Errorf("after %s: %v", id, err)
		}
	}
	e.following(Query{Since: time.Unix(0, 0)}, "").want(e, 4, 5)
	if err := e.Follow(t.Context(), Query{Type: "none"}, "", nil); !errs.Is(err, errs.InvalidArgument) {
		t.Error(err)
	}
}
