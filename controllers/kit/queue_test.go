package kit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

var errTest = errors.New("test")

var testBackoff = Backoff{Base: time.Second, Max: time.Minute, MaxUnavailable: 5 * time.Second}

func mustGet(t *testing.T, q *Queue, want schema.ID) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // of the bubble's clock
	defer cancel()
	got, err := q.Get(ctx)
	if err != nil || got != want {
		t.Fatalf("Get = %q, %v; want %q", got, err, want)
	}
}

func nothing(t *testing.T, q *Queue, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if got, err := q.Get(ctx); err == nil {
		t.Fatalf("Get = %q; want nothing for %s", got, d)
	}
}

func TestQueueCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(testBackoff)
		q.Add("a")
		q.Add("b")
		q.Add("a")
		mustGet(t, q, "a")
		mustGet(t, q, "b")
		nothing(t, q, time.Minute)
		q.Finish("a", Outcome{})
		q.Finish("b", Outcome{})
		nothing(t, q, time.Minute)
		if len(q.items) != 0 {
			t.Errorf("%d idle items are remembered", len(q.items))
		}
	})
}

func TestQueueRunsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(testBackoff)
		q.Add("a")
		mustGet(t, q, "a")
		q.Add("a")
		q.Add("a")
		nothing(t, q, time.Minute) // no second worker gets the key
		q.Finish("a", Outcome{})
		mustGet(t, q, "a")
		q.Finish("a", Outcome{})
		nothing(t, q, time.Minute)
	})
}

func TestQueueBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(testBackoff)
		q.Add("a")
		begin := time.Now()
		for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60} {
			want *= time.Second
			mustGet(t, q, "a")
			if late := time.Since(begin); late != 0 {
				t.Fatalf("retry %d came %s late", i, late)
			}
			got := q.Finish("a", Outcome{Err: errTest})
			if got > want || got < want*4/5-1 {
				t.Fatalf("wait %d is %s, want about %s", i, got, want)
			}
			begin = time.Now().Add(got)
		}
		mustGet(t, q, "a")
		q.Finish("a", Outcome{})
		q.Add("a")
		mustGet(t, q, "a")
		if got := q.Finish("a", Outcome{Err: errTest}); got > time.Second {
			t.Errorf("a success does not reset the backoff: %s", got)
		}
	})
}

func TestQueueBackoffUnavailable(t *testing.T) {
	for failures := range 100 {
		if d := testBackoff.Delay(failures, errs.New(errs.Unavailable, "x")); d > 5*time.Second || d <= 0 {
			t.Errorf("wait %d is %s", failures, d)
		}
		if d := testBackoff.Delay(failures, errTest); d > time.Minute || d <= 0 {
			t.Errorf("wait %d is %s", failures, d)
		}
	}
}

func TestQueueChangeBringsRetryForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(Backoff{Base: 20 * time.Second, Max: time.Minute})
		q.Add("a")
		mustGet(t, q, "a")
		q.Finish("a", Outcome{Err: errTest})
		q.Add("a")
		begin := time.Now()
		mustGet(t, q, "a")
		if d := time.Since(begin); d != changeDelay {
			t.Errorf("ran after %s", d)
		}
		// The key changed while its run failed: the same.
		q.Add("a")
		q.Finish("a", Outcome{Err: errTest})
		begin = time.Now()
		mustGet(t, q, "a")
		if d := time.Since(begin); d != changeDelay {
			t.Errorf("ran after %s", d)
		}
		q.Finish("a", Outcome{Err: errTest})
		time.Sleep(2 * time.Second)
		q.Add("a")
		begin = time.Now()
		mustGet(t, q, "a")
		if d := time.Since(begin); d != 0 {
			t.Errorf("a change long after the failure waited %s", d)
		}
		q.Finish("a", Outcome{})
		nothing(t, q, time.Hour) // the old retry is cancelled
	})
}

func TestQueueTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(testBackoff)
		fail := Outcome{Err: Terminal(errTest), Terminal: true}
		q.Add("a")
		mustGet(t, q, "a")
		if d := q.Finish("a", fail); d >= 0 {
			t.Errorf("retry in %s", d)
		}
		q.Resync("a")
		nothing(t, q, time.Hour)
		q.Add("a")
		mustGet(t, q, "a")
		q.Add("a") // the key changed while its run failed
		q.Finish("a", fail)
		mustGet(t, q, "a")
		q.Finish("a", Outcome{})
		q.Resync("a")
		mustGet(t, q, "a")
	})
}

func TestQueueAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(testBackoff)
		for _, k := range []schema.ID{"c", "b", "a"} {
			q.Add(k)
			mustGet(t, q, k)
		}
		q.Finish("c", Outcome{After: 3 * time.Second})
		q.Finish("b", Outcome{After: 2 * time.Second})
		q.Finish("a", Outcome{After: 1 * time.Second})
		begin := time.Now()
		for i, k := range []schema.ID{"a", "b", "c"} {
			mustGet(t, q, k)
			if d := time.Since(begin); d != time.Duration(i+1)*time.Second {
				t.Errorf("%s after %s", k, d)
			}
		}
		// A change before the time replaces the wait.
		q.Finish("a", Outcome{After: time.Minute})
		q.Add("a")
		mustGet(t, q, "a")
		q.Finish("a", Outcome{})
		nothing(t, q, time.Hour)
	})
}

// TestQueueProperty: producers count changes per key and add the key; workers
// note the count they see when they begin. At the end every key was seen with
// its last count, and no key was ever with two workers.
func TestQueueProperty(t *testing.T) {
	const keys, producers, workers, changes = 20, 4, 6, 4000
	q := NewQueue(Backoff{Base: time.Microsecond, Max: time.Millisecond})
	var count, seen [keys]atomic.Int64
	var busy [keys]atomic.Int32
	ids := map[schema.ID]int{}
	name := func(i int) schema.ID { return schema.ID(fmt.Sprintf("k-%d", i)) }
	for i := range keys {
		ids[name(i)] = i
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var work, produce sync.WaitGroup
	for w := range workers {
		work.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			for {
				k, err := q.Get(ctx)
				if err != nil {
					return
				}
				i := ids[k]
				if busy[i].Add(1) != 1 {
					t.Errorf("%s is with two workers", k)
				}
				n := count[i].Load()
				for range rnd.IntN(200) {
					_ = rnd.Uint64()
				}
				busy[i].Add(-1)
				var o Outcome
				switch rnd.IntN(5) {
				case 0:
					o.Err = errTest
				case 1:
					o.After = time.Duration(rnd.IntN(100)) * time.Microsecond
				}
				if o.Err == nil {
					for old := seen[i].Load(); n > old && !seen[i].CompareAndSwap(old, n); old = seen[i].Load() {
					}
				}
				q.Finish(k, o)
			}
		})
	}
	for p := range producers {
		produce.Go(func() {
			rnd := rand.New(rand.NewPCG(2, uint64(p)))
			for range changes {
				i := rnd.IntN(keys)
				count[i].Add(1)
				q.Add(name(i))
				if rnd.IntN(50) == 0 {
					q.Resync(name(i))
				}
			}
		})
	}
	produce.Wait()
	for i := range keys {
		wait.For(t, "all changes of "+string(name(i)), func() bool { return seen[i].Load() == count[i].Load() },
			wait.State(func() any { return fmt.Sprintf("%d of %d", seen[i].Load(), count[i].Load()) }))
	}
	cancel()
	work.Wait()
}
