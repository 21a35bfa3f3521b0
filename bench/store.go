package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// watchers is how many watchers follow all puts, each on its own connection.
const watchers = 4

// pacedRate is the puts per second at which watch latency is compared at equal load.
const pacedRate = 1000

func benchStore(ctx context.Context, b *bench) (err error) {
	pki := b.scratch.path("pki")
	cfg, err := clientTLS(pki)
	if err != nil {
		return err
	}
	mine, err := b.start(ctx, "store", "--dir", b.scratch.path("install-store"), "--pki", pki)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mine.stop()) }()
	peer, err := b.start(ctx, "etcd", "--dir", b.scratch.path("etcd"), "--pki", pki)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.stop()) }()
	o, e := &ours{mine.address, cfg}, &etcd{peer.address, cfg}

	for _, load := range []struct {
		clients int
		shared  bool
		goal    float64
	}{{1, false, 0.9}, {8, false, 1.0}, {64, false, 1.3}, {64, true, 0}} {
		what := fmt.Sprintf("puts, %s", plural(load.clients, "client"))
		if load.shared {
			what += " on one connection"
		}
		if err := putRow(ctx, b, o, e, what, load.clients, load.shared, load.goal); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	for _, load := range []struct {
		name string
		rate float64
	}{{"64 clients at full speed", 0}, {fmt.Sprintf("64 clients, %d puts/s", pacedRate), pacedRate}} {
		if err := watchRow(ctx, b, o, e, load.name, load.rate); err != nil {
			return fmt.Errorf("watch, %s: %w", load.name, err)
		}
	}
	return nil
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func putRow(ctx context.Context, b *bench, o, e keyspace, what string, clients int, shared bool, goal float64) error {
	var fleets [2]*fleet
	for i, k := range []keyspace{o, e} {
		f, err := newFleet(ctx, k, clients, shared)
		if err != nil {
			return err
		}
		defer f.close()
		fleets[i] = f
	}
	var rate, p99 pair
	if err := b.turns(ctx, 7, func(side int) (figures, error) {
		took, d, err := fleets[side].run(ctx, b.turn(), 0)
		return figures{float64(len(took)) / d.Seconds(), took.ms(99)}, err
	}, &rate, &p99); err != nil {
		return err
	}
	b.report.compare(what, "puts/s", "etcd", &rate, goal, 0)
	b.report.compare(what+", p99", "ms", "etcd", &p99, 0, 0)
	return nil
}

func watchRow(ctx context.Context, b *bench, o, e keyspace, name string, rate float64) error {
	var p50, p99 pair
	total := 0
	if err := b.turns(ctx, 5, func(side int) (figures, error) {
		took, err := watchTurn(ctx, []keyspace{o, e}[side], 64, rate, b.turn())
		total += len(took)
		return figures{took.ms(50), took.ms(99)}, err
	}, &p50, &p99); err != nil {
		return err
	}
	b.report.compare("watch latency, "+name+", p50", "ms", "etcd", &p50, 0, 0)
	b.report.compare("watch latency, "+name+", p99", "ms", "etcd", &p99, 0, 0.7)
	progress("  nothing was missed: %d events checked", total)
	return nil
}

// fleet is clients with their keys.
type fleet struct {
	conns   []storeConn
	clients [][]slot
}

var nextKey atomic.Uint64

func newFleet(ctx context.Context, k keyspace, clients int, shared bool) (*fleet, error) {
	f := &fleet{}
	for i := range clients {
		if i == 0 || !shared {
			c, err := k.dial(ctx)
			if err != nil {
				f.close()
				return nil, err
			}
			f.conns = append(f.conns, c)
		}
		var slots []slot
		for range keysEach {
			s, err := f.conns[len(f.conns)-1].create(ctx, nextKey.Add(1))
			if err != nil {
				f.close()
				return nil, err
			}
			slots = append(slots, s)
		}
		f.clients = append(f.clients, slots)
	}
	return f, nil
}

func (f *fleet) close() {
	for _, c := range f.conns {
		c.close()
	}
}

func (f *fleet) puts() (n uint64) {
	for _, slots := range f.clients {
		for _, s := range slots {
			n += s.count()
		}
	}
	return n
}

// run makes every client put for d: one after the other, or rate per second for
// all together. It returns the duration of each put.
func (f *fleet) run(ctx context.Context, d time.Duration, rate float64) (latencies, time.Duration, error) {
	var mu sync.Mutex
	var all latencies
	var failed error
	var wg sync.WaitGroup
	start := time.Now()
	for c, slots := range f.clients {
		wg.Go(func() {
			var took latencies
			var err error
			interval := time.Duration(0)
			if rate > 0 {
				interval = time.Duration(float64(len(f.clients)) / rate * float64(time.Second))
			}
			next := start.Add(interval * time.Duration(c) / time.Duration(len(f.clients)))
			for i := 0; err == nil && ctx.Err() == nil; i++ {
				if interval > 0 {
					time.Sleep(time.Until(next))
					next = next.Add(interval)
				}
				t := time.Now()
				if t.Sub(start) >= d {
					break
				}
				if err = slots[i%len(slots)].put(ctx); err == nil {
					took = append(took, time.Since(t))
				}
			}
			mu.Lock()
			all = append(all, took...)
			failed = errors.Join(failed, err)
			mu.Unlock()
		})
	}
	wg.Wait()
	return all, time.Since(start), errors.Join(failed, ctx.Err())
}

// catchUp bounds how long watchers may lag behind the last put.
const catchUp = 30 * time.Second

// watchTurn returns the latency of every event at every watcher. It fails if
// a watcher missed a put, or saw one twice or out of order.
func watchTurn(ctx context.Context, k keyspace, clients int, rate float64, d time.Duration) (latencies, error) {
	f, err := newFleet(ctx, k, clients, false)
	if err != nil {
		return nil, err
	}
	defer f.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	mine := map[uint64]bool{} // events of this turn
	for _, slots := range f.clients {
		for _, s := range slots {
			mine[s.id()] = true
		}
	}
	type watcher struct {
		took latencies
		seen atomic.Uint64
		err  error
	}
	all := make([]*watcher, watchers)
	var running, beginning sync.WaitGroup
	for i := range all {
		w := &watcher{}
		all[i] = w
		c, err := k.dial(ctx)
		if err != nil {
			cancel()
			running.Wait()
			return nil, err
		}
		beginning.Add(1)
		running.Go(func() {
			defer c.close()
			begun := sync.OnceFunc(beginning.Done)
			defer begun()
			last := map[uint64]uint64{}
			var wrong error
			err := c.watch(ctx, begun, func(s seen) {
				if !mine[s.key] || s.seq == 0 {
					return
				}
				if s.seq != last[s.key]+1 && wrong == nil {
					wrong = fmt.Errorf("key %d: put %d was seen after put %d", s.key, s.seq, last[s.key])
				}
				last[s.key] = s.seq
				w.took = append(w.took, s.after)
				w.seen.Add(1)
			})
			w.err = errors.Join(err, wrong)
		})
	}
	beginning.Wait()
	_, _, err = f.run(ctx, d, rate)
	want := f.puts()
	deadline := time.Now().Add(catchUp)
	for _, w := range all {
		for err == nil && ctx.Err() == nil && w.seen.Load() < want && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
	}
	cancel()
	running.Wait()
	var took latencies
	for i, w := range all {
		if w.err != nil {
			return nil, fmt.Errorf("watcher %d: %w", i, w.err)
		}
		if n := w.seen.Load(); err == nil && n != want {
			return nil, fmt.Errorf("watcher %d saw %d of %d puts", i, n, want)
		}
		took = append(took, w.took...)
	}
	return took, err
}
