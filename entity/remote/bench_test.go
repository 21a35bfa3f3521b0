package remote_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/api/store"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

// BenchmarkTxn measures the cost that RPC adds to a compare-and-swap put, with
// 64 callers.
func BenchmarkTxn(b *testing.B) {
	srv, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer srv.Close()
	now := time.Now()
	rec := schema.Record{Kind: "thing", Meta: schema.Meta{
		ID: schema.NewID("th"), Project: schema.NewID("proj"), Name: "a-name", Revision: 100000, SpecRevision: 100000, StatusRevision: 99999,
		CreateRevision: 1000, CreatedAt: now, UpdatedAt: now,
	}, Spec: make([]byte, 200)}
	store.RegisterEntities(srv, remote.NewServer(&answering{rec: rec}, nil))
	cl := srv.Local(rpc.Identity{Name: "b", Roles: []string{rpc.RoleAdmin}, How: "process"})
	defer cl.Close()
	st := remote.New(cl)
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ReportAllocs()
	for range 64 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				req := entity.TxnRequest{Ops: []entity.Op{{Type: entity.OpUpdateSpec, Record: rec, If: 100000}}}
				if _, err := st.Txn(b.Context(), req); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "txns/s")
}

// answering is a store whose transactions cost nothing.
type answering struct {
	memory
	rec schema.Record
}

func (a *answering) Txn(context.Context, entity.TxnRequest) (entity.TxnResult, error) {
	return entity.TxnResult{Revision: 1, Records: []schema.Record{a.rec}}, nil
}
