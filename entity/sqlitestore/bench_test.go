package sqlitestore_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/sqlitestore"
	"miren.dev/runtime/entity/storetest"
)

// BenchmarkPut measures conditional status updates of a 200-byte entity, each
// writer its own, as the benchmark of pgstore does.
func BenchmarkPut(b *testing.B) {
	for _, writers := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			s := open(b, sqlitestore.Config{})
			proj := newProject(b, s)
			things := make([]*storetest.Thing, writers)
			for i := range things {
				things[i] = create(b, s, proj, func(o *storetest.Thing) { o.Spec.Weight = make([]byte, 200) })
			}
			var left atomic.Int64
			left.Store(int64(b.N))
			var mu sync.Mutex
			var took []time.Duration
			var wg sync.WaitGroup
			b.ResetTimer()
			for _, o := range things {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						began := time.Now()
						o.Status.Count++
						if err := entity.UpdateStatus(context.Background(), s, o); err != nil {
							b.Error(err)
							return
						}
						mu.Lock()
						took = append(took, time.Since(began))
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(len(took))/b.Elapsed().Seconds(), "puts/s")
			slices.Sort(took)
			for _, p := range []int{50, 99} {
				b.ReportMetric(float64(took[len(took)*p/100].Microseconds()), fmt.Sprintf("put-p%d-µs", p))
			}
		})
	}
}
