package sqlitestore

import (
	"database/sql"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const sqlWhere = `select revision, epoch, origin from store`

// runBatcher commits queued transactions until the store is closing. Only its
// goroutine changes entities.
func (s *Store) runBatcher() {
	defer close(s.batcherDone)
	var txns []*eval.Txn
	for {
		if txns = s.queue.Collect(txns[:0]); txns == nil {
			return
		}
		for rest := txns; len(rest) > 0; {
			rest = s.commit(rest)
		}
		clear(txns)
	}
}

// commit applies a batch and answers its transactions, except for the rest that
// it returns.
func (s *Store) commit(txns []*eval.Txn) (rest []*eval.Txn) {
	began := time.Now()
	out, err := s.apply(txns)
	switch {
	case err == nil:
		s.metrics.batch(len(txns)-len(out.Rest), time.Since(began))
		s.hub.Publish(out)
		out.Answer(txns, false)
		return out.Rest
	case (errs.Is(err, errs.Internal) || errs.Is(err, errs.Corrupt)) && len(txns) > 1:
		// Find the transaction that cannot be applied, so that it alone fails.
		for i := range txns {
			s.commit(txns[i : i+1])
		}
		return nil
	}
	s.logger.Error("cannot write", "transactions", len(txns), "error", err)
	for _, t := range txns {
		t.Finish(entity.TxnResult{}, err)
	}
	return nil
}

// apply decides about a batch and makes it durable, in one transaction.
func (s *Store) apply(txns []*eval.Txn) (*eval.Outcome, error) {
	out := s.eval.NewOutcome()
	l := &loader{leases: &s.leases}
	defer l.release()
	err := s.db.write(func(w writer) error {
		var base int64
		var origin string
		if err := w.query(sqlWhere, func(r *sql.Rows) error { return r.Scan(&base, &out.Epoch, &origin) }); err != nil {
			return err
		}
		l.w = w
		out.Want(txns)
		if err := l.load(out.View); err != nil {
			return err
		}
		if err := out.Evaluate(txns, schema.Revision(base), now(), l.load); err != nil {
			return err
		}
		if !out.Writes() {
			return errRollback
		}
		return w.outcome(out)
	})
	if err != nil {
		return nil, mapError(err, "write")
	}
	ended, ending := out.Leases()
	l.end(ended, ending)
	return out, nil
}

// outcome writes the accepted transactions.
func (w writer) outcome(out *eval.Outcome) error {
	if err := w.entities(out.View.EntityDiff()); err != nil {
		return err
	}
	if err := w.keys(out.View.KeyDiff()); err != nil {
		return err
	}
	ended, ending := out.Leases()
	for _, id := range ended {
		if _, err := w.exec(`delete from lease where id = ?1`, id); err != nil {
			return err
		}
	}
	for _, id := range ending {
		if _, err := w.exec(`update lease set ended = 1 where id = ?1`, id); err != nil {
			return err
		}
	}
	rows, err := out.LogRows()
	if err != nil || len(rows) == 0 {
		return err
	}
	for _, r := range rows {
		if _, err := w.exec(`insert into log (revision, seq, type, kind, id, prev_revision, record, prev, departed, request, request_hash)
			values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, nullif(?10, ''), ?11)`,
			int64(r.Revision), r.Seq, r.Type, r.Key.Kind, r.Key.ID, int64(r.PrevRevision), r.Record, r.Prev, r.Departed, r.Request, r.RequestHash); err != nil {
			return err
		}
	}
	_, err = w.exec(`update store set revision = ?1`, int64(out.Last))
	return err
}

// entities writes the net change of the entities.
func (w writer) entities(d eval.EntityDiff) error {
	for _, k := range d.Delete {
		if _, err := w.exec(`delete from entity where kind = ?1 and id = ?2`, k.Kind, k.ID); err != nil {
			return err
		}
	}
	put := func(query string, list []*eval.Object) error {
		for _, o := range list {
			r := o.Rec
			if _, err := w.exec(query, r.Kind, string(r.ID), string(r.Project), string(r.Lease), int64(r.Revision), o.Raw); err != nil {
				return err
			}
		}
		return nil
	}
	if err := put(`update entity set project = ?3, lease = nullif(?4, ''), revision = ?5, record = ?6 where kind = ?1 and id = ?2`, d.Update); err != nil {
		return err
	}
	return put(`insert into entity (kind, id, project, lease, revision, record) values (?1, ?2, ?3, nullif(?4, ''), ?5, ?6)`, d.Insert)
}

// keys writes the net changes of indexes, unique values and references: all
// removals before all additions.
func (w writer) keys(d eval.KeyDiff) error {
	index := func(query string, rows []eval.UniqueRow) error {
		for _, r := range rows {
			if _, err := w.exec(query, r.Kind, r.Attr, []byte(r.Value), r.ID); err != nil {
				return err
			}
		}
		return nil
	}
	unique := func(query string, rows []eval.UniqueRow) error {
		for _, r := range rows {
			if _, err := w.exec(query, r.Kind, r.Attr, []byte(r.Value), r.Scope, r.ID); err != nil {
				return err
			}
		}
		return nil
	}
	refs := func(query string, rows []eval.RefRow, policy bool) error {
		for _, r := range rows {
			args := []any{r.Kind, string(r.RefEntry.ID), r.From.Kind, r.From.ID, r.Attr}
			if policy {
				args = append(args, string(r.OnDelete))
			}
			if _, err := w.exec(query, args...); err != nil {
				return err
			}
		}
		return nil
	}
	for _, step := range []func() error{
		func() error {
			return index(`delete from entity_index where kind = ?1 and attr = ?2 and value = ?3 and id = ?4`, d.DeleteIndex)
		},
		func() error { // the id protects a value that has got a new owner meanwhile
			return unique(`delete from entity_unique where kind = ?1 and attr = ?2 and value = ?3 and scope = ?4 and id = ?5`, d.DeleteUnique)
		},
		func() error {
			return refs(`delete from entity_ref where target_kind = ?1 and target_id = ?2 and kind = ?3 and id = ?4 and attr = ?5`, d.DeleteRefs, false)
		},
		func() error {
			return index(`insert into entity_index (kind, attr, value, id) values (?1, ?2, ?3, ?4) on conflict do nothing`, d.InsertIndex)
		},
		func() error {
			return unique(`insert into entity_unique (kind, attr, value, scope, id) values (?1, ?2, ?3, ?4, ?5)
				on conflict (kind, attr, value, scope) do update set id = excluded.id`, d.InsertUnique)
		},
		func() error {
			return refs(`insert into entity_ref (target_kind, target_id, kind, id, attr, on_delete) values (?1, ?2, ?3, ?4, ?5, ?6)
				on conflict (target_kind, target_id, kind, id, attr) do update set on_delete = excluded.on_delete`, d.InsertRefs, true)
		},
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
