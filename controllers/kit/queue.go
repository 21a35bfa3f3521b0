package kit

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"miren.dev/runtime/pkg/schema"
)

// changeDelay is the longest wait of a changed key after a failure. It keeps a
// reconcile that fails after each write of its own from spinning.
const changeDelay = 500 * time.Millisecond

// Queue is a queue of keys. A key is in it at most once, and one worker at a
// time has it: a key that is added while a worker has it is handed out again
// after Finish. The queue drops no key, so every Add is followed by a Get of
// that key which begins after it. It is bounded only by the number of distinct
// keys. It is safe for concurrent use.
type Queue struct {
	backoff Backoff

	mu      sync.Mutex
	items   map[schema.ID]*item
	ready   fifo
	delayed delayHeap
	timer   *time.Timer
	wake    chan struct{} // holds a token while ready may be non-empty
}

// NewQueue returns an empty queue that delays retries by b.
func NewQueue(b Backoff) *Queue {
	return &Queue{backoff: b.withDefaults(), items: map[schema.ID]*item{}, wake: make(chan struct{}, 1)}
}

type item struct {
	key      schema.ID
	ready    bool // in ready
	running  bool
	again    bool // changed while running
	terminal bool // the last run ended in a terminal error and no change came since
	failures int  // failures in a row
	earliest time.Time
	due      time.Time
	index    int // index in delayed, or -1
}

// idle items carry no information and are forgotten.
func (it *item) idle() bool {
	return !it.ready && !it.running && !it.again && !it.terminal && it.failures == 0 && it.index < 0
}

// Outcome is the result of the work on a key.
type Outcome struct {
	Err      error         // retry with backoff
	Terminal bool          // with Err: no retry until the next Add
	After    time.Duration // without Err: hand out again after this time; 0: do not
}

// Add says that key changed.
func (q *Queue) Add(key schema.ID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.item(key)
	it.terminal = false
	switch {
	case it.ready:
	case it.running:
		it.again = true
	default:
		q.schedule(it, it.earliest)
	}
}

// Resync hands key out again, unless its last run ended in a terminal error or
// it waits for a retry.
func (q *Queue) Resync(key schema.ID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.item(key)
	if it.terminal || it.failures > 0 || it.ready || it.running {
		return
	}
	q.schedule(it, time.Time{})
}

// Get takes the next key. The caller works on it and calls Finish. It returns
// ctx's error when ctx ends.
func (q *Queue) Get(ctx context.Context) (schema.ID, error) {
	for {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		if it := q.take(); it != nil {
			return it.key, nil
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
		}
	}
}

func (q *Queue) take() *item {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.ready.pop()
	if it == nil {
		return nil
	}
	if q.ready.len() > 0 {
		q.signal()
	}
	it.ready, it.running = false, true
	return it
}

// Finish ends the work on a key that Get returned. It returns the time until
// the key is handed out again, or a negative time if it is not.
func (q *Queue) Finish(key schema.ID, o Outcome) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.items[key]
	if it == nil || !it.running {
		panic("kit: Finish of a key that Get did not return: " + string(key))
	}
	it.running = false
	again := it.again
	it.again = false

	delay := time.Duration(-1)
	now := time.Now()
	if o.Err != nil {
		wait := q.backoff.Delay(it.failures, o.Err)
		it.failures++
		it.earliest = now.Add(min(wait, changeDelay))
		it.terminal = o.Terminal && !again
		if !o.Terminal {
			delay = wait
		}
		if again {
			delay = min(wait, changeDelay)
		}
	} else {
		it.failures, it.earliest, it.terminal = 0, time.Time{}, false
		if o.After > 0 {
			delay = o.After
		}
		if again {
			delay = 0
		}
	}
	if delay >= 0 {
		q.schedule(it, now.Add(delay))
	}
	q.drop(it)
	return delay
}

// Depth holds the number of keys of a Queue, by what they wait for.
type Depth struct {
	Ready    int // waiting for a worker
	Delayed  int // waiting for a time
	Running  int // handed out to a worker
	Retrying int // of all keys: the last run failed
}

// Depth returns how many keys there are.
func (q *Queue) Depth() Depth {
	q.mu.Lock()
	defer q.mu.Unlock()
	d := Depth{Ready: q.ready.len(), Delayed: len(q.delayed)}
	for _, it := range q.items {
		if it.running {
			d.Running++
		}
		if it.failures > 0 {
			d.Retrying++
		}
	}
	return d
}

// Stop stops the timer. Keys that wait for a time are not handed out any more.
func (q *Queue) Stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.timer != nil {
		q.timer.Stop()
	}
}

// The methods below are called with mu held.

func (q *Queue) item(key schema.ID) *item {
	it := q.items[key]
	if it == nil {
		it = &item{key: key, index: -1}
		q.items[key] = it
	}
	return it
}

func (q *Queue) drop(it *item) {
	if it.idle() {
		delete(q.items, it.key)
	}
}

// schedule makes the item ready at the given time, or sooner if it was due
// sooner.
func (q *Queue) schedule(it *item, at time.Time) {
	now := time.Now()
	if !at.After(now) {
		if it.index >= 0 {
			heap.Remove(&q.delayed, it.index)
		}
		it.ready = true
		q.ready.push(it)
		q.signal()
		return
	}
	switch {
	case it.index < 0:
		it.due = at
		heap.Push(&q.delayed, it)
	case at.Before(it.due):
		it.due = at
		heap.Fix(&q.delayed, it.index)
	default:
		return
	}
	if it.index == 0 {
		q.arm(at.Sub(now))
	}
}

func (q *Queue) arm(d time.Duration) {
	if q.timer == nil {
		q.timer = time.AfterFunc(d, q.expire)
		return
	}
	q.timer.Reset(d)
}

// expire moves due items to ready. It takes mu.
func (q *Queue) expire() {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for len(q.delayed) > 0 {
		it := q.delayed[0]
		if it.due.After(now) {
			q.arm(it.due.Sub(now))
			return
		}
		q.schedule(it, now)
	}
}

func (q *Queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// fifo is a queue of items that reuses its memory.
type fifo struct {
	items []*item
	head  int
}

func (f *fifo) len() int { return len(f.items) - f.head }

func (f *fifo) push(it *item) {
	if f.head > 32 && f.head > len(f.items)/2 {
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
	f.items = append(f.items, it)
}

func (f *fifo) pop() *item {
	if f.len() == 0 {
		return nil
	}
	it := f.items[f.head]
	f.items[f.head] = nil
	f.head++
	return it
}

// delayHeap orders items by due.
type delayHeap []*item

func (h delayHeap) Len() int           { return len(h) }
func (h delayHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h delayHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *delayHeap) Push(x any) {
	it := x.(*item)
	it.index = len(*h)
	*h = append(*h, it)
}

func (h *delayHeap) Pop() any {
	old := *h
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	it.index = -1
	return it
}
