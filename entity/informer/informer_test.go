package informer_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fxamacker/cbor/v2"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/history"
)

type thing = storetest.Thing

// errDown is the error of a store that cannot be reached.
var errDown = errs.New(errs.Unavailable, "down")

// source is a history of things and nodes.
type source struct{ *history.Reader }

func newSource() source { return source{history.New()} }

func (s source) thing(id schema.ID, color string) schema.Revision {
	b, _ := cbor.Marshal(storetest.ThingSpec{Color: color})
	return s.Put("thing", id, b)
}

func (s source) node(id schema.ID, arch string) schema.Revision {
	b, _ := cbor.Marshal(storetest.NodeSpec{Arch: arch})
	return s.Put("node", id, b)
}

// start runs a Set until the test ends.
func start(t testing.TB, s *informer.Set) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// told records the calls of a handler, and checks their consistency: Old is the
// earlier New.
type told struct {
	t testing.TB

	mu      sync.Mutex
	objects map[schema.ID]schema.Object
	log     []string
}

func tell(t testing.TB, s *informer.Set, k *schema.Kind) *told {
	t.Helper()
	r := &told{t: t, objects: map[schema.ID]schema.Object{}}
	s.Handle(k, r.change)
	return r
}

func (r *told) change(c informer.Change[schema.Object]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o, verb := c.New, "put"
	if o == nil {
		o, verb = c.Old, "gone"
	}
	id := o.GetMeta().ID
	if r.objects[id] != c.Old {
		r.t.Errorf("%s %s comes after %v, was told %v", verb, id, c.Old, r.objects[id])
	}
	if r.objects[id] = c.New; c.New == nil {
		delete(r.objects, id)
	}
	text := verb + " " + string(id)
	if th, ok := o.(*thing); ok {
		text += " " + th.Spec.Color
	}
	r.log = append(r.log, text)
}

// take returns the calls since the last take.
func (r *told) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := strings.Join(r.log, ", ")
	r.log = nil
	return out
}

func (r *told) want(want string) {
	r.t.Helper()
	synctest.Wait()
	if got := r.take(); got != want {
		r.t.Errorf("told %q, want %q", got, want)
	}
}

func TestHandlersAreToldInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		src.thing("a", "red")
		src.thing("b", "red")
		s := informer.New(informer.Config{Reader: src})
		first := tell(t, s, storetest.ThingKind)
		start(t, s)
		first.want("put a red, put b red")
		src.thing("b", "blue")
		src.thing("a", "blue")
		src.Delete("b")
		src.node("n", "arm64") // no kind of the Set
		first.want("put b blue, put a blue, gone b blue")
		if at := s.Position().Revision; at != 5 {
			t.Errorf("position %d after revision 5", at)
		}
		time.Sleep(time.Second) // the next bookmark moves the position
		synctest.Wait()
		if at := s.Position().Revision; at != 6 {
			t.Errorf("position %d after revision 6 and a bookmark", at)
		}

		// A handler that is added later gets the existing entities.
		second := tell(t, s, storetest.ThingKind)
		second.want("put a blue")
		src.thing("c", "red")
		first.want("put c red")
		second.want("put c red")
	})
}

func TestRemovedHandlerIsNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		s := informer.New(informer.Config{Reader: src})
		calls := 0
		remove := informer.Of[thing](s).Handle(func(informer.Change[*thing]) { calls++ })
		start(t, s)
		src.thing("a", "red")
		synctest.Wait()
		remove()
		src.thing("b", "red")
		synctest.Wait()
		if calls != 1 {
			t.Errorf("%d calls", calls)
		}
	})
}

// TestKindsAreListedWhenAskedFor: a kind that is requested while the Set runs
// is listed then, and no change of the others is delivered twice or lost.
func TestKindsAreListedWhenAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		src.thing("a", "red")
		src.node("n", "arm64")
		s := informer.New(informer.Config{Reader: src})
		start(t, s)
		synctest.Wait()
		if n := src.Lists(); n != 0 {
			t.Errorf("%d listings before anything was asked for", n)
		}
		things := tell(t, s, storetest.ThingKind)
		things.want("put a red")
		src.thing("b", "red")
		src.node("m", "arm64")
		things.want("put b red")
		nodes := tell(t, s, storetest.NodeKind)
		if err := s.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
		nodes.want("put m, put n")
		things.want("")
		src.Delete("n")
		src.Delete("a")
		nodes.want("gone n")
		things.want("gone a red")
		if n := src.Lists(); n != 2 {
			t.Errorf("%d listings of two kinds", n)
		}
		informer.Of[thing](s)
		synctest.Wait()
		if n := src.Lists(); n != 2 {
			t.Errorf("a kind was listed again: %d listings", n)
		}
	})
}

// TestTransactionsOfSeveralKinds: when the position moves, all kinds have
// reached it.
func TestTransactionsOfSeveralKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		s := informer.New(informer.Config{Reader: src})
		things, nodes := informer.Of[thing](s), informer.Of[storetest.Node](s)
		var seen []schema.Revision
		s.OnAdvance(func(at schema.Token) {
			newest := schema.Revision(0)
			for _, o := range things.List() {
				newest = max(newest, o.Revision)
			}
			for _, o := range nodes.List() {
				newest = max(newest, o.Revision)
			}
			if newest != at.Revision {
				t.Errorf("at %d the newest entity has revision %d", at.Revision, newest)
			}
			seen = append(seen, at.Revision)
		})
		start(t, s)
		for range 5 {
			src.thing("a", "red")
			src.node("n", "arm64")
			synctest.Wait()
		}
		src.Fail(errDown)
		src.thing("a", "red")
		src.Compact()
		src.node("n", "arm64")
		src.Fail(nil)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if last := seen[len(seen)-1]; last != 12 || !slices.IsSorted(seen) {
			t.Errorf("positions %v", seen)
		}
	})
}

func TestIndexes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		s := informer.New(informer.Config{Reader: src})
		things := informer.Of[thing](s)
		color := func(o *thing) []string { return []string{o.Spec.Color} }
		things.AddIndex("early", color)
		start(t, s)
		src.thing("b", "red")
		src.thing("a", "red")
		synctest.Wait()
		things.AddIndex("late", color)
		want := func(color string, want ...schema.ID) {
			t.Helper()
			synctest.Wait()
			for _, index := range []string{"early", "late"} {
				var got []schema.ID
				for _, o := range things.ByIndex(index, color) {
					got = append(got, o.ID)
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s index, %s: %v, want %v", index, color, got, want)
				}
			}
		}
		want("red", "a", "b")
		src.thing("a", "blue")
		want("red", "b")
		want("blue", "a")
		src.Delete("a")
		want("blue")
		if things.Len() != 1 || things.Get("a") != nil || things.Get("b").Spec.Color != "red" {
			t.Errorf("%v", things.List())
		}
	})
}

func TestTrimmedObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		src.thing("a", "red")
		s := informer.New(informer.Config{Reader: src})
		things := informer.Of[thing](s)
		things.Trim(func(o *thing) { o.Spec.Color = "" })
		start(t, s)
		src.thing("b", "red")
		synctest.Wait()
		for _, o := range things.List() {
			if o.Spec.Color != "" {
				t.Errorf("%s is %s", o.ID, o.Spec.Color)
			}
		}
	})
}

// TestOutageChangesNothing: while the store is unavailable the state stays and
// attempts become rare; afterwards the watch resumes without a listing.
func TestOutageChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		src.thing("a", "red")
		s := informer.New(informer.Config{Reader: src})
		things := tell(t, s, storetest.ThingKind)
		start(t, s)
		things.want("put a red")
		src.Fail(errDown)
		src.thing("b", "red")
		src.Delete("a")
		time.Sleep(time.Hour)
		things.want("")
		st := s.Status()
		if !st.Synced || !errs.Is(st.Err, errs.Unavailable) || time.Since(st.LastSeen) < time.Hour {
			t.Errorf("%+v", st)
		}
		if n := st.Interruptions; n < 1200 || n > 2500 {
			t.Errorf("%d attempts in an hour", n)
		}
		src.Fail(nil)
		time.Sleep(3 * time.Second)
		things.want("put b red, gone a red")
		if st := s.Status(); st.Err != nil || time.Since(st.LastSeen) > 3*time.Second {
			t.Errorf("%+v", st)
		}
		if n := src.Lists(); n != 1 {
			t.Errorf("%d listings", n)
		}
	})
}

func TestCompactionListsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		for _, id := range []schema.ID{"changed", "gone", "same"} {
			src.thing(id, "red")
		}
		s := informer.New(informer.Config{Reader: src})
		things := tell(t, s, storetest.ThingKind)
		start(t, s)
		things.want("put changed red, put gone red, put same red")
		src.Fail(errDown)
		src.Delete("gone")
		src.thing("changed", "blue")
		src.thing("new", "blue")
		src.Compact()
		src.Fail(nil)
		time.Sleep(3 * time.Second)
		things.want("put changed blue, put new blue, gone gone red")
	})
}

// TestNewEpochUsesRevisionsAgain: after a restore the same revision is another
// state, and writes after the backup are gone.
func TestNewEpochUsesRevisionsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		backup := src.thing("a", "red")
		src.thing("a", "lost")
		src.thing("lost", "red")
		s := informer.New(informer.Config{Reader: src})
		things := tell(t, s, storetest.ThingKind)
		start(t, s)
		things.want("put a lost, put lost red")
		src.Restore(backup)
		src.thing("a", "new") // at the revision of "lost"
		time.Sleep(time.Second)
		things.want("put a new, gone lost red")
		src.thing("a", "newer")
		things.want("put a newer")
		if at := s.Position(); at.Epoch != "epoch-1" || at.Revision != 3 {
			t.Errorf("position %v", at)
		}
	})
}

// TestUndecodableIsNotGone: the Set keeps an entity that becomes unreadable
// unchanged.
func TestUndecodableIsNotGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		src.thing("a", "red")
		s := informer.New(informer.Config{Reader: src})
		things := tell(t, s, storetest.ThingKind)
		start(t, s)
		things.want("put a red")
		src.Put("thing", "a", []byte("garbage"))
		src.Put("thing", "b", []byte("garbage"))
		things.want("")
		src.Compact() // a new listing is the same
		time.Sleep(time.Second)
		things.want("")
		src.thing("b", "red")
		src.Delete("a")
		things.want("put b red, gone a red")
	})
}

var _ entity.Reader = source{}

func split(log string) []string { return strings.Split(log, ", ") }
