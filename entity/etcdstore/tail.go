package etcdstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/entity/feed"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const (
	// pollInterval is how often the tailer reads the position without a hint.
	pollInterval = time.Second
	// staleAfter is the age of the tailer's last check from which on a bookmark is
	// not sent.
	staleAfter = 3 * pollInterval
	// pageKeys is how many keys are read at once.
	pageKeys = 500
)

// begin makes the state of a new store, and loads the replica.
func (s *Store) begin(ctx context.Context) error {
	_, err := retryRead(ctx, s, "read the store's position", func(ctx context.Context) (struct{}, error) {
		if resp, err := s.client.Get(ctx, s.keys.moving(), clientv3.WithCountOnly()); err != nil || resp.Count > 0 {
			if err == nil {
				err = errs.New(errs.FailedPrecondition, "a copy of another store into this one did not end").WithHint("repeat `r server move-store`")
			}
			return struct{}{}, err
		}
		s.applying.Lock()
		defer s.applying.Unlock()
		return struct{}{}, s.pollLocked(ctx)
	})
	return err
}

// NewEpoch makes every token that was given out so far invalid: watchers list
// again. Call it after the cluster was put back to an earlier state in a way that
// the store cannot detect.
func (s *Store) NewEpoch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Attempt)
	defer cancel()
	s.applying.Lock()
	defer s.applying.Unlock()
	st, mod, origin, err := s.readState(ctx)
	if err == nil {
		err = s.newEpoch(ctx, st, mod, origin)
	}
	if err == nil {
		err = s.pollLocked(ctx)
	}
	return mapError(err, "begin a new epoch")
}

// newEpoch begins an epoch, unless another server has written since.
func (s *Store) newEpoch(ctx context.Context, st storedState, mod int64, origin uint64) error {
	if st.Epoch != "" {
		s.logger.Warn("this is another copy of the store: beginning a new epoch", "previous", st.Epoch)
	}
	st.Epoch, st.Origin = string(schema.NewID("epoch")), origin
	w := &writes{s: s}
	if err := w.state(st); err != nil {
		return err
	}
	_, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(s.keys.state()), "=", mod)).Then(w.ops...).Commit()
	return err
}

// readState reads the position, zero for a new store.
func (s *Store) readState(ctx context.Context) (st storedState, mod int64, origin uint64, err error) {
	resp, err := s.client.Get(ctx, s.keys.state())
	if err != nil {
		return st, 0, 0, err
	}
	if len(resp.Kvs) > 0 {
		mod = resp.Kvs[0].ModRevision
		if err = decode(resp.Kvs[0], &st); err == nil {
			err = st.check()
		}
	}
	return st, mod, resp.Header.ClusterId, err
}

// check refuses what a later version of the program wrote.
func (st *storedState) check() error {
	if st.Format > format {
		return errs.New(errs.FailedPrecondition, "the store has format %d; this program knows %d", st.Format, format).WithHint("use a newer version of the program")
	}
	return nil
}

// tail follows the log until ctx ends, so that replica and hub also get the commits
// of other servers.
func (s *Store) tail(ctx context.Context) {
	hints := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.listen(ctx, hints)
	}()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	failing := false
	for {
		switch err := s.poll(ctx); {
		case err == nil && failing:
			failing = false
			s.logger.Info("following the log again")
		case err != nil && ctx.Err() == nil && !failing:
			failing = true
			s.logger.Warn("cannot follow the log", "error", err)
		}
		select {
		case <-ctx.Done():
			<-done
			return
		case <-hints:
		case <-s.hub.Gap():
		case <-tick.C:
		}
	}
}

// listen turns changes of the position into hints.
func (s *Store) listen(ctx context.Context, hints chan<- struct{}) {
	for ctx.Err() == nil {
		// The channel is closed when the watch fails.
		for range s.client.Watch(clientv3.WithRequireLeader(ctx), s.keys.state()) {
			select {
			case hints <- struct{}{}:
			default:
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollInterval):
		}
	}
}

// poll brings the replica and the hub up to date.
func (s *Store) poll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Attempt)
	defer cancel()
	began := time.Now()
	st, mod, origin, err := s.readState(ctx)
	if err != nil {
		return err
	}
	// Most polls find nothing, and need no lock.
	if epoch, _, have := s.replica.where(); st.Epoch != epoch || mod > have || st.Origin != origin {
		s.applying.Lock()
		defer s.applying.Unlock()
		if err := s.pollLocked(ctx); err != nil {
			return err
		}
	}
	s.hub.SetChecked(began)
	return nil
}

// pollLocked is poll; Store.applying is held.
func (s *Store) pollLocked(ctx context.Context) error {
	for {
		st, mod, origin, err := s.readState(ctx)
		if err != nil {
			return err
		}
		epoch, rev, _ := s.replica.where()
		to := schema.Revision(st.Revision)
		switch {
		case st.Epoch == "" || st.Origin != origin:
			err = s.newEpoch(ctx, st, mod, origin)
		case st.Epoch != epoch:
			err = s.reload(ctx)
		case to < rev:
			s.logger.Error("the store went back in time", "revision", to, "previous", rev)
			err = s.newEpoch(ctx, st, mod, origin)
		case to > rev:
			err = s.follow(ctx, epoch, rev, to)
		default:
			s.replica.mu.Lock()
			s.replica.mod = mod
			s.replica.mu.Unlock()
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// follow applies the revisions after rev of the log.
func (s *Store) follow(ctx context.Context, epoch string, rev, to schema.Revision) error {
	resp, err := s.client.Get(ctx, s.keys.log(rev+1), clientv3.WithRange(s.keys.log(to+1)), clientv3.WithLimit(pageKeys))
	if err != nil {
		return err
	}
	applied := 0
	for _, kv := range resp.Kvs {
		at, err := s.keys.revisionOf(kv.Key)
		if err != nil {
			return err
		}
		if at != rev+1 {
			break
		}
		var entry storedLog
		if err := decode(kv, &entry); err != nil {
			return err
		}
		if err := s.applyEntry(epoch, at, &entry); err != nil {
			return err
		}
		rev, applied = at, applied+1
	}
	if applied > 0 {
		return nil
	}
	// So far behind that the log is gone: no watch can continue.
	s.logger.Warn("fell behind the log", "previous", rev, "revision", to)
	return s.reload(ctx)
}

// reload loads the whole replica, and begins the hub's history there.
func (s *Store) reload(ctx context.Context) error {
	for {
		err := s.loadAll(ctx)
		if !errors.Is(rpctypes.Error(err), rpctypes.ErrCompacted) {
			return err
		}
		// etcd dropped the snapshot meanwhile: take a later one.
	}
}

func (s *Store) loadAll(ctx context.Context) error {
	resp, err := s.client.Get(ctx, s.keys.state())
	if err != nil || len(resp.Kvs) == 0 {
		return err
	}
	var st storedState
	if err := decode(resp.Kvs[0], &st); err != nil {
		return err
	}
	snapshot, mod := resp.Header.Revision, resp.Kvs[0].ModRevision
	v := s.eval.NewView()
	end := clientv3.GetPrefixRangeEnd(s.keys.entities())
	for from := s.keys.entities(); ; {
		// A large store takes longer than one attempt.
		page, err := s.getPage(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(pageKeys), clientv3.WithRev(snapshot))
		if err != nil {
			return err
		}
		for _, kv := range page.Kvs {
			var e storedEntity
			if err := decode(kv, &e); err != nil {
				return err
			}
			o, err := s.replica.object(e.Record, e.Refs)
			if err != nil {
				return err
			}
			k := eval.KeyOf(o.Rec)
			v.Origin[k], v.Objects[k] = nil, o
		}
		if !page.More {
			break
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
	r := s.replica
	r.mu.Lock()
	r.clear()
	r.apply(v)
	r.epoch, r.rev, r.origin, r.mod = st.Epoch, schema.Revision(st.Revision), st.Origin, mod
	r.mu.Unlock()
	s.hub.Begin(st.Epoch, schema.Revision(st.Revision))
	return nil
}

// getPage reads with a deadline of its own.
func (s *Store) getPage(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Attempt)
	defer cancel()
	return s.client.Get(ctx, key, opts...)
}

// applyEntry applies a revision of the log.
func (s *Store) applyEntry(epoch string, rev schema.Revision, entry *storedLog) error {
	r, v := s.replica, s.eval.NewView()
	r.mu.Lock()
	defer r.mu.Unlock()
	var entries []feed.Entry
	for i := range entry.Changes {
		c := &entry.Changes[i]
		k := eval.Key{Kind: c.Kind, ID: c.ID}
		v.Origin[k], v.Objects[k] = r.objects[k], nil
		if c.Type != eval.LogDelete {
			o, err := r.object(c.Record, c.Refs)
			if err != nil {
				return err
			}
			v.Objects[k] = o
		}
		e, err := s.hub.DecodeEntry(int64(rev), c.Type, c.Record, c.Departed)
		if err != nil {
			return err
		}
		entries = append(entries, e)
	}
	r.apply(v)
	r.rev = rev
	s.hub.Feed(epoch, rev, rev, entries)
	return nil
}

// source is the Store as its hub sees it.
type source struct{ s *Store }

// Poll implements feed.Source.
func (src source) Poll(ctx context.Context) error { return mapError(src.s.poll(ctx), "watch") }

// Position implements feed.Source.
func (src source) Position(ctx context.Context) (feed.Position, error) {
	return retryRead(ctx, src.s, "watch", src.s.position)
}

// position reads the position and the floor.
func (s *Store) position(ctx context.Context) (p feed.Position, err error) {
	resp, err := s.client.Txn(ctx).Then(clientv3.OpGet(s.keys.state()), clientv3.OpGet(s.keys.floor())).Commit()
	if err != nil {
		return p, err
	}
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		var st storedState
		if err := decode(kvs[0], &st); err != nil {
			return p, err
		}
		p.Epoch, p.Last = st.Epoch, schema.Revision(st.Revision)
	}
	if kvs := resp.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 {
		var floor int64
		err = decode(kvs[0], &floor)
		p.Floor = schema.Revision(floor)
	}
	return p, err
}

// Changes implements feed.Source.
func (src source) Changes(ctx context.Context, epoch string, from, to schema.Revision, kinds []string, ids []schema.ID) ([]feed.Entry, schema.Revision, error) {
	s := src.s
	type result struct {
		entries []feed.Entry
		to      schema.Revision
	}
	res, err := retryRead(ctx, s, "watch", func(ctx context.Context) (r result, err error) {
		r.to = to
		resp, err := s.client.Get(ctx, s.keys.log(from+1), clientv3.WithRange(s.keys.log(to+1)), clientv3.WithLimit(pageKeys))
		if err != nil {
			return r, err
		}
		for _, kv := range resp.Kvs {
			rev, err := s.keys.revisionOf(kv.Key)
			if err != nil {
				return r, err
			}
			if resp.More {
				r.to = rev
			}
			var entry storedLog
			if err := decode(kv, &entry); err != nil {
				return r, err
			}
			for _, c := range entry.Changes {
				if len(kinds) > 0 && !slices.Contains(kinds, c.Kind) || len(ids) > 0 && !slices.Contains(ids, schema.ID(c.ID)) {
					continue
				}
				e, err := s.hub.DecodeEntry(int64(rev), c.Type, c.Record, c.Departed)
				if err != nil {
					return r, err
				}
				r.entries = append(r.entries, e)
			}
		}
		// A floor is published before anything below it is dropped, so it is read
		// after the log.
		p, err := s.position(ctx)
		token := schema.Token{Epoch: epoch, Revision: from}
		switch {
		case err != nil:
			return r, err
		case p.Epoch != epoch:
			return r, eval.Compacted(token, "the store began a new epoch")
		case from < p.Floor:
			return r, eval.Compacted(token, "the log was compacted")
		}
		return r, nil
	})
	return res.entries, res.to, err
}
