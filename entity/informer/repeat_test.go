package informer_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fxamacker/cbor/v2"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/schema"
)

// hooked is a source whose listings a test changes or delays.
type hooked struct {
	source
	list func(kind string, p entity.Page) entity.Page // called after each listing
}

func (h hooked) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	p, err := h.source.List(ctx, q)
	if err == nil {
		p = h.list(q.Kind, p)
	}
	return p, err
}

// TestWritesBetweenTheListings: kinds are listed at different revisions. The
// watch begins at the earliest and repeats no change that a kind's listing
// includes, and the position is not before the latest.
func TestWritesBetweenTheListings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		src.thing("kept", "red")
		src.node("n", "arm64")
		wrote := make(chan struct{})
		h := hooked{src, func(kind string, p entity.Page) entity.Page {
			if kind == "node" {
				src.thing("passing", "red")
				src.Delete("passing")
				src.thing("kept", "blue")
				src.node("m", "arm64")
				close(wrote)
				return p
			}
			<-wrote
			p, err := src.List(t.Context(), entity.Query{Kind: kind})
			if err != nil {
				t.Error(err)
			}
			return p
		}}
		s := informer.New(informer.Config{Reader: h})
		things, nodes := tell(t, s, storetest.ThingKind), tell(t, s, storetest.NodeKind)
		var positions []schema.Revision
		s.OnAdvance(func(at schema.Token) {
			if informer.Of[storetest.Node](s).Len() != 2 {
				t.Errorf("the position is %d, and a node of revision 6 is not there", at.Revision)
			}
			positions = append(positions, at.Revision)
		})
		start(t, s)
		things.want("put kept blue")
		nodes.want("put n, put m")
		if len(positions) == 0 || positions[0] != 6 {
			t.Errorf("positions %v", positions)
		}
	})
}

// TestListingOfAServerBehind: a kind that is added may be listed by a server
// that is behind the watch. The watch then begins earlier, and changes of the
// other kinds that it repeats are not delivered again.
func TestListingOfAServerBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		src.node("n", "arm64")
		h := hooked{src, func(kind string, p entity.Page) entity.Page {
			if kind == "node" { // the state at revision 1
				p.Records, p.Token.Revision = p.Records[:1], 1
			}
			return p
		}}
		s := informer.New(informer.Config{Reader: h})
		things := tell(t, s, storetest.ThingKind)
		start(t, s)
		things.want("")
		src.thing("a", "red")
		src.Delete("a")
		src.node("o", "arm64")
		things.want("put a red, gone a red")
		before := s.Position()
		nodes := tell(t, s, storetest.NodeKind)
		nodes.want("put n, put o")
		things.want("")
		if at := s.Position(); at.Revision < before.Revision {
			t.Errorf("the position went from %v back to %v", before, at)
		}
	})
}

// script is a Reader whose watches return scripted events, one entry per watch,
// then fail. The last waits.
type script struct {
	entity.Reader
	watches [][]entity.Event
	from    []schema.Revision // query of each watch
}

func (s *script) List(context.Context, entity.Query) (entity.Page, error) {
	return entity.Page{Token: schema.Token{Epoch: "e", Revision: 1}}, nil
}

func (s *script) Watch(_ context.Context, q entity.WatchQuery) (entity.Watch, error) {
	s.from = append(s.from, q.From.Revision)
	w := &scriptWatch{}
	if len(s.watches) > 0 {
		w.events, s.watches = s.watches[0], s.watches[1:]
		w.fails = len(s.watches) > 0
	}
	return w, nil
}

type scriptWatch struct {
	events []entity.Event
	fails  bool
}

func (w *scriptWatch) Close() {}

func (w *scriptWatch) Next(ctx context.Context) ([]entity.Event, error) {
	if events := w.events; len(events) > 0 {
		w.events = nil
		return events, nil
	}
	if w.fails {
		return nil, errDown
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestResumedAmidATransaction: a watch that resumes within a transaction
// repeats all of it; changes that were delivered are not delivered again.
func TestResumedAmidATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		put := func(id schema.ID, rev, resume schema.Revision) entity.Event {
			b, _ := cbor.Marshal(storetest.ThingSpec{Color: "red"})
			return entity.Event{Type: entity.EventPut, Token: schema.Token{Epoch: "e", Revision: resume},
				Record: schema.Record{Kind: "thing", Meta: schema.Meta{ID: id, Revision: rev}, Spec: b}}
		}
		gone := put("b", 4, 4)
		gone.Type = entity.EventDelete
		src := &script{watches: [][]entity.Event{
			{put("a", 2, 2), put("b", 3, 2)}, // cut off within revision 3
			{put("b", 3, 2), put("c", 3, 3), gone},
			{gone, put("d", 5, 5)},
		}}
		s := informer.New(informer.Config{Reader: src})
		things := tell(t, s, storetest.ThingKind)
		start(t, s)
		time.Sleep(time.Second)
		things.want("put a red, put b red, put c red, gone b red, put d red")
		if want := []schema.Revision{1, 2, 4}; !slices.Equal(src.from, want) {
			t.Errorf("watches from %v, want %v", src.from, want)
		}
	})
}
