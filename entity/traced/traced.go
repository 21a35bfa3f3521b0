// Package traced records the operations of an entity store as spans: what was
// asked for by kind and number, never the entities.
package traced

import (
	"context"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/trace"
)

// Store is an entity.Store whose operations are spans of the traces of their
// contexts. Watches and leases, which belong to no request, are not.
type Store struct{ entity.Store }

// New returns a Store over s.
func New(s entity.Store) Store { return Store{s} }

// Get implements entity.Reader.
func (s Store) Get(ctx context.Context, kind string, id schema.ID) (schema.Record, error) {
	ctx, span := trace.Start(ctx, "store get", trace.Client)
	span.Text("runtime.kind", kind)
	span.Text("runtime.id", string(id))
	rec, err := s.Store.Get(ctx, kind, id)
	span.End(err)
	return rec, err
}

// List implements entity.Reader.
func (s Store) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	ctx, span := trace.Start(ctx, "store list", trace.Client)
	span.Text("runtime.kind", q.Kind)
	page, err := s.Store.List(ctx, q)
	span.Int("runtime.records", int64(len(page.Records)))
	span.End(err)
	return page, err
}

// Txn implements entity.Store.
func (s Store) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	ctx, span := trace.Start(ctx, "store transaction", trace.Client)
	span.Int("runtime.operations", int64(len(req.Ops)))
	if len(req.Ops) > 0 {
		span.Text("runtime.kind", req.Ops[0].Record.Kind)
		span.Text("runtime.id", string(req.Ops[0].Record.ID))
	}
	res, err := s.Store.Txn(ctx, req)
	span.Int("runtime.revision", int64(res.Revision))
	span.End(err)
	return res, err
}
