package ingress

import (
	"context"
	"fmt"
	"testing"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// benchStore is an entity.Reader with a fixed listing, and events that the
// benchmark sends.
type benchStore struct {
	records map[string][]schema.Record
	events  chan []entity.Event
}

func (s *benchStore) Get(context.Context, string, schema.ID) (schema.Record, error) {
	panic("the ingress reads no single entity")
}

func (s *benchStore) List(_ context.Context, q entity.Query) (entity.Page, error) {
	return entity.Page{Records: s.records[q.Kind], Token: schema.Token{Epoch: "e", Revision: 1}}, nil
}

func (s *benchStore) Watch(context.Context, entity.WatchQuery) (entity.Watch, error) { return s, nil }

func (s *benchStore) Next(ctx context.Context) ([]entity.Event, error) {
	select {
	case evs := <-s.events:
		return evs, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *benchStore) Close() {}

// newBenchStore has apps with five sandboxes each, and as many sandboxes that
// serve no app.
func newBenchStore(b *testing.B, apps int) *benchStore {
	b.Helper()
	s := &benchStore{records: map[string][]schema.Record{}, events: make(chan []entity.Event)}
	add := func(o schema.Object) {
		o.GetMeta().Revision, o.GetMeta().Project = 1, "proj-1"
		rec, err := o.EntityKind().Encode(o)
		if err != nil {
			b.Fatal(err)
		}
		s.records[rec.Kind] = append(s.records[rec.Kind], *rec)
	}
	for i := range apps {
		a := app.NewApp()
		a.ID, a.Name, a.CreateRevision = schema.ID(fmt.Sprintf("app-%04d", i)), fmt.Sprintf("app-%04d", i), 1
		a.Status.Activate(id.AppVersion(fmt.Sprintf("ver-%04d", i)))
		add(a)
		for j := range 10 {
			sb := sandbox.NewSandbox()
			sb.ID = schema.ID(fmt.Sprintf("sb-%04d-%d", i, j))
			sb.Spec.Template.Image, sb.Spec.Template.Env = "img@sha256:0", map[string]string{"PORT": "8080", "RUNTIME_APP": a.Name}
			sb.Spec.Template.Ports = []sandbox.Port{{Name: "http", Number: 8080}}
			sb.Status.Phase, sb.Status.Ready, sb.Status.Address = sandbox.SandboxPhaseRunning, true, "10.0.0.1"
			if j < 5 {
				sb.Spec.App, sb.Spec.AppVersion, sb.Spec.Service = a.GetID(), a.Status.Active(), "web"
			}
			add(sb)
		}
	}
	return s
}

// BenchmarkTableUpdate measures from a change of the store to the table that
// has it: of a sandbox that serves, which makes a new table, and of one that
// does not, which makes none.
//
//	go test -run '^$' -bench TableUpdate ./servers/ingress
func BenchmarkTableUpdate(b *testing.B) {
	for _, apps := range []int{20, 400} {
		for _, what := range []string{"serving", "other"} {
			b.Run(fmt.Sprintf("%d/%s", apps, what), func(b *testing.B) {
				s := newBenchStore(b, apps)
				in := start(b, Config{Reader: s, Logger: quiet})
				send := func(rev schema.Revision, evs ...entity.Event) {
					tok := schema.Token{Epoch: "e", Revision: rev}
					s.events <- append(evs, entity.Event{Type: entity.EventBookmark, Token: tok})
					if _, err := in.follower.waitFor(b.Context(), rev); err != nil {
						b.Fatal(err)
					}
				}
				send(1)
				kind := sandbox.SandboxKind
				rec := s.records[kind.Name][0]
				if what == "other" {
					rec = s.records[kind.Name][9]
				}
				o, err := kind.Decode(&rec)
				if err != nil {
					b.Fatal(err)
				}
				sb := o.(*sandbox.Sandbox)
				b.ReportAllocs()
				rev := schema.Revision(1)
				for b.Loop() {
					rev++
					sb.Status.Ready = rev%2 == 0
					rec, err := kind.Encode(sb)
					if err != nil {
						b.Fatal(err)
					}
					rec.Revision = rev
					send(rev, entity.Event{Type: entity.EventPut, Record: *rec, Token: schema.Token{Epoch: "e", Revision: rev}})
				}
			})
		}
	}
}
