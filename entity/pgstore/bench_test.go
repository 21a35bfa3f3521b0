package pgstore_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
)

// benchStore is durable unless RUNTIME_BENCH_NOSYNC is set.
func benchStore(b *testing.B) *pgstore.Store {
	b.Helper()
	url := ""
	if os.Getenv("RUNTIME_BENCH_NOSYNC") != "" {
		url = pgtest.URL(b)
	} else {
		url = pgtest.DurableServer(b).URL()
	}
	return pgtest.Open(b, pgstore.Config{URL: url, Kinds: storetest.Kinds()})
}

// BenchmarkPut measures conditional status updates of a 200-byte entity, each
// writer its own.
func BenchmarkPut(b *testing.B) {
	for _, writers := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			s := benchStore(b)
			things := benchThings(b, s, writers)
			put(b, s, things)
		})
	}
}

func benchThings(b *testing.B, s entity.Store, n int) []*thing {
	b.Helper()
	proj := newProject(b, s)
	things := make([]*thing, n)
	for i := range things {
		things[i] = create(b, s, proj, func(o *thing) { o.Spec.Weight = make([]byte, 200) })
	}
	return things
}

func put(b *testing.B, s entity.Store, things []*thing) {
	measure(b, "put", len(things), func(worker int) error {
		o := things[worker]
		o.Status.Count++
		return entity.UpdateStatus(context.Background(), s, o)
	})
}

// measure has workers call f, b.N times together, and reports the rate of the calls
// and how long they took. f gets the number of the worker.
func measure(b *testing.B, what string, workers int, f func(worker int) error) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var mu sync.Mutex
	var took []time.Duration
	var wg sync.WaitGroup
	b.ResetTimer()
	began := time.Now()
	for worker := range workers {
		wg.Go(func() {
			var mine []time.Duration
			for left.Add(-1) >= 0 {
				t := time.Now()
				if err := f(worker); err != nil {
					b.Error(err)
					return
				}
				mine = append(mine, time.Since(t))
			}
			mu.Lock()
			took = append(took, mine...)
			mu.Unlock()
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), what+"s/s")
	report(b, what, took)
}

func report(b *testing.B, what string, took []time.Duration) {
	if len(took) == 0 {
		return
	}
	slices.Sort(took)
	for _, p := range []int{50, 99} {
		b.ReportMetric(float64(took[len(took)*p/100].Microseconds()), fmt.Sprintf("%s-p%d-µs", what, p))
	}
}

// BenchmarkWatch measures the time from the start of a put to its event, with
// 8 writers and 16 watchers.
func BenchmarkWatch(b *testing.B) {
	s := benchStore(b)
	things := benchThings(b, s, 8)
	const watchers = 16
	type sample struct {
		id    schema.ID
		count int64
	}
	var mu sync.Mutex
	began := map[sample]time.Time{}
	var took []time.Duration
	var watching, writing sync.WaitGroup
	for range watchers {
		w, err := s.Watch(b.Context(), entity.WatchQuery{Kinds: []string{"thing"}})
		if err != nil {
			b.Fatal(err)
		}
		watching.Go(func() {
			defer w.Close()
			var mine []time.Duration
			for n := 0; n < b.N; {
				evs, err := w.Next(context.Background())
				if err != nil {
					b.Error(err)
					return
				}
				now := time.Now()
				for i := range evs {
					if evs[i].Type != entity.EventPut {
						continue
					}
					o, err := entity.Decode[thing](&evs[i].Record)
					if err != nil {
						b.Error(err)
						return
					}
					mu.Lock()
					mine = append(mine, now.Sub(began[sample{o.ID, o.Status.Count}]))
					mu.Unlock()
					n++
				}
			}
			mu.Lock()
			took = append(took, mine...)
			mu.Unlock()
		})
	}
	b.ResetTimer()
	var left atomic.Int64
	left.Store(int64(b.N))
	for _, o := range things {
		writing.Go(func() {
			for left.Add(-1) >= 0 {
				o.Status.Count++
				mu.Lock()
				began[sample{o.ID, o.Status.Count}] = time.Now()
				mu.Unlock()
				if err := entity.UpdateStatus(context.Background(), s, o); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	writing.Wait()
	watching.Wait()
	b.StopTimer()
	report(b, "watch", took)
}

// BenchmarkAppend measures the append of one audit record of 200 bytes.
func BenchmarkAppend(b *testing.B) {
	for _, appenders := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("appenders=%d", appenders), func(b *testing.B) {
			s := benchStore(b)
			rec := entity.HistoryRecord{
				Stream: entity.StreamAudit, Project: "shop", Actor: "alice", SubjectKind: "app", SubjectID: "blog", Action: "app.Apps/SetEnv",
				Outcome: "ok", RequestID: "r1", Detail: []byte(`{"from":"certified","address":"192.0.2.7","us":1234}`),
			}
			if err := s.Append(b.Context(), rec); err != nil {
				b.Fatal(err)
			}
			measure(b, "append", appenders, func(int) error { return s.Append(context.Background(), rec) })
		})
	}
}
