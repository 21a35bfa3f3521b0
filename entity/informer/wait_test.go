package informer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		s := informer.New(informer.Config{Reader: src})
		informer.Of[thing](s)
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := s.WaitSynced(short); !errs.Is(err, errs.DeadlineExceeded) {
			t.Errorf("synced before it runs: %v", err)
		}
		start(t, s)
		if err := s.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
		done := make(chan schema.Token, 1)
		go func() {
			at, err := s.WaitRevision(t.Context(), 2)
			if err != nil {
				t.Error(err)
			}
			done <- at
		}()
		src.thing("a", "red")
		synctest.Wait()
		if len(done) != 0 {
			t.Error("revision 2 before there is one")
		}
		src.node("n", "arm64")
		if at := <-done; at.Revision != 2 {
			t.Errorf("position %v", at)
		}
		short, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if at, err := s.WaitRevision(short, 3); !errs.Is(err, errs.DeadlineExceeded) || at.Revision != 2 {
			t.Errorf("%v, %v", at, err)
		}
	})
}

// TestRefusalIsToldAtOnce: a caller that waits for a kind that cannot be read
// gets the error; the Set continues to try.
func TestRefusalIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		src.Fail(errs.New(errs.PermissionDenied, "no"))
		s := informer.New(informer.Config{Reader: src})
		things := tell(t, s, storetest.ThingKind)
		start(t, s)
		if err := s.WaitSynced(t.Context()); !errs.Is(err, errs.PermissionDenied) {
			t.Errorf("got %v", err)
		}
		src.Fail(nil)
		src.thing("a", "red")
		time.Sleep(3 * time.Second)
		things.want("put a red")
	})
}

// awaiting is an Await under way.
type awaiting struct {
	o   *thing
	err error
}

func await(t *testing.T, s *informer.Set, id schema.ID, color string) <-chan awaiting {
	t.Helper()
	out := make(chan awaiting, 1)
	go func() {
		o, err := informer.Of[thing](s).Await(t.Context(), id, func(o *thing) (bool, error) {
			if o.Spec.Color == "bad" {
				return false, errs.New(errs.FailedPrecondition, "bad")
			}
			return o.Spec.Color == color, nil
		})
		out <- awaiting{o, err}
	}()
	synctest.Wait()
	return out
}

func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		src.thing("a", "red")
		s := informer.New(informer.Config{Reader: src})
		informer.Of[thing](s)
		start(t, s)
		synctest.Wait()

		if r := <-await(t, s, "a", "red"); r.err != nil || r.o.Spec.Color != "red" {
			t.Errorf("what holds already: %+v", r)
		}
		if r := <-await(t, s, "missing", "red"); !errs.Is(r.err, errs.NotFound) {
			t.Errorf("what does not exist: %+v", r)
		}
		waiting := await(t, s, "a", "blue")
		src.thing("a", "green")
		src.thing("b", "blue")
		synctest.Wait()
		if len(waiting) != 0 {
			t.Fatalf("%+v", <-waiting)
		}
		src.thing("a", "blue")
		if r := <-waiting; r.err != nil || r.o.Spec.Color != "blue" {
			t.Errorf("%+v", r)
		}
		waiting = await(t, s, "a", "red")
		src.thing("a", "bad")
		if r := <-waiting; !errs.Is(r.err, errs.FailedPrecondition) {
			t.Errorf("an error of the condition: %+v", r)
		}
		src.thing("a", "blue")
		waiting = await(t, s, "a", "red")
		src.Delete("a")
		if r := <-waiting; !errs.Is(r.err, errs.NotFound) {
			t.Errorf("a deletion: %+v", r)
		}
	})
}

// TestAwaitDuringAnOutage: Await waits through a short outage; a long one is an
// error, but not NotFound.
func TestAwaitDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		src.thing("a", "red")
		s := informer.New(informer.Config{Reader: src, OutageLimit: 30 * time.Second})
		informer.Of[thing](s)
		start(t, s)
		waiting := await(t, s, "a", "blue")
		src.Fail(errDown)
		time.Sleep(20 * time.Second)
		late := await(t, s, "a", "blue") // begins during the outage
		src.thing("a", "blue")
		src.Fail(nil)
		time.Sleep(5 * time.Second)
		for _, w := range []<-chan awaiting{waiting, late} {
			if r := <-w; r.err != nil {
				t.Errorf("after a short outage: %v", r.err)
			}
		}
		waiting = await(t, s, "a", "red")
		src.Fail(errDown)
		begin := time.Now()
		if r := <-waiting; !errs.Is(r.err, errs.Unavailable) {
			t.Errorf("%+v", r)
		}
		if d := time.Since(begin); d > 31*time.Second || d < 20*time.Second {
			t.Errorf("gave up after %s", d)
		}
		begin = time.Now()
		if r := <-await(t, s, "a", "red"); !errs.Is(r.err, errs.Unavailable) {
			t.Errorf("%+v", r)
		}
		if d := time.Since(begin); d > 35*time.Second || d < 20*time.Second {
			t.Errorf("gave up after %s", d)
		}
	})
}

// TestAwaitAcrossARestore: Await does not wait longer because of revisions of
// another epoch.
func TestAwaitAcrossARestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		backup := src.thing("a", "red")
		for range 10 {
			src.thing("a", "green")
		}
		src.thing("lost", "green")
		s := informer.New(informer.Config{Reader: src})
		informer.Of[thing](s)
		start(t, s)
		waiting, lost := await(t, s, "a", "blue"), await(t, s, "lost", "blue")
		src.Restore(backup)
		src.thing("a", "blue")
		if r := <-waiting; r.err != nil {
			t.Errorf("%+v", r)
		}
		if r := <-lost; !errs.Is(r.err, errs.NotFound) {
			t.Errorf("%+v", r)
		}
	})
}
