// Package guarded keeps the users of an entity store from waiting, one after the
// other, for a database that is away.
package guarded

import (
	"context"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/breaker"
	"miren.dev/runtime/pkg/schema"
)

// Store is an entity.Store whose reads, lists and transactions go through a
// circuit breaker. Watches wait by themselves until the database is back, and
// leases are renewed until they lapse: they are few, and not asked for by callers.
type Store struct {
	entity.Store
	breaker *breaker.Breaker
}

// New returns a Store over s.
func New(s entity.Store, b *breaker.Breaker) Store { return Store{s, b} }

// Get implements entity.Reader.
func (s Store) Get(ctx context.Context, kind string, id schema.ID) (rec schema.Record, err error) {
	err = s.breaker.Do(ctx, func() error {
		rec, err = s.Store.Get(ctx, kind, id)
		return err
	})
	return rec, err
}

// List implements entity.Reader.
func (s Store) List(ctx context.Context, q entity.Query) (page entity.Page, err error) {
	err = s.breaker.Do(ctx, func() error {
		page, err = s.Store.List(ctx, q)
		return err
	})
	return page, err
}

// Txn implements entity.Store.
func (s Store) Txn(ctx context.Context, req entity.TxnRequest) (res entity.TxnResult, err error) {
	err = s.breaker.Do(ctx, func() error {
		res, err = s.Store.Txn(ctx, req)
		return err
	})
	return res, err
}
