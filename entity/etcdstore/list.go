package etcdstore

import (
	"context"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/entity/listing"
	"miren.dev/runtime/pkg/schema"
)

// List implements entity.Reader. Later pages show the store as it was at the
// revision of the first: changes since then are undone from the log.
func (s *Store) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	l, err := listing.New(s.eval, q, "")
	if err != nil {
		return entity.Page{}, err
	}
	return retryRead(ctx, s, "list "+q.Kind, func(ctx context.Context) (entity.Page, error) { return s.listPage(ctx, l) })
}

func (s *Store) listPage(ctx context.Context, l *listing.Listing) (entity.Page, error) {
	// What was acknowledged before the call, by any server, is in the list.
	if err := s.poll(ctx); err != nil {
		return entity.Page{}, err
	}
	r := l.Rows()
	if err := s.selectRows(r); err != nil {
		return entity.Page{}, err
	}
	r.EpochAfter = r.Epoch
	if !l.First() {
		if err := s.addPast(ctx, l, r); err != nil {
			return entity.Page{}, err
		}
		p, err := s.position(ctx) // after the log: see source.Changes
		if err != nil {
			return entity.Page{}, err
		}
		r.EpochAfter, r.Floor = p.Epoch, p.Floor
	}
	return r.Page()
}

func (s *Store) selectRows(r *listing.Rows) error {
	s.replica.mu.RLock()
	defer s.replica.mu.RUnlock()
	r.Epoch, r.Revision = s.replica.epoch, s.replica.rev
	return r.Select(s.replica)
}

// addPast adds, for every entity of a kind that changed after the revision of the
// listing, its state at that revision: the state before its first change since. For
// a deletion the log has it as the record; for an update it is prev, or an entry of
// its own that is recent enough to be still there.
func (s *Store) addPast(ctx context.Context, l *listing.Listing, r *listing.Rows) error {
	since, kind, after := l.Past()
	seen := map[string]bool{}
	for from := since + 1; from <= r.Revision; {
		resp, err := s.client.Get(ctx, s.keys.log(from), clientv3.WithRange(s.keys.log(r.Revision+1)), clientv3.WithLimit(pageKeys))
		if err != nil {
			return err
		}
		for _, kv := range resp.Kvs {
			if from, err = s.keys.revisionOf(kv.Key); err != nil {
				return err
			}
			var entry storedLog
			if err := decode(kv, &entry); err != nil {
				return err
			}
			for i := range entry.Changes {
				c := &entry.Changes[i]
				if c.Kind != kind || c.ID <= after || seen[c.ID] {
					continue
				}
				if seen[c.ID] = true; c.PrevRevision == 0 {
					continue
				}
				raw, err := s.before(ctx, c)
				if err != nil {
					return err
				}
				if err := r.AddPast(raw); err != nil {
					return err
				}
			}
		}
		if from++; !resp.More {
			return nil
		}
	}
	return nil
}

// before returns the state of an entity before a change; nil if it was compacted.
func (s *Store) before(ctx context.Context, c *storedChange) ([]byte, error) {
	if c.Type == eval.LogDelete {
		return c.Record, nil
	}
	if c.Prev != nil {
		return c.Prev, nil
	}
	entry, err := s.readEntry(ctx, schema.Revision(c.PrevRevision))
	if err != nil || entry == nil {
		return nil, err
	}
	i := slices.IndexFunc(entry.Changes, func(p storedChange) bool { return p.Kind == c.Kind && p.ID == c.ID })
	if i < 0 {
		return nil, nil
	}
	return entry.Changes[i].Record, nil
}
