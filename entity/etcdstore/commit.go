package etcdstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// runBatcher commits queued transactions until the store is closing.
func (s *Store) runBatcher() {
	defer close(s.batcherDone)
	var txns []*eval.Txn
	for {
		if txns = s.queue.Collect(txns[:0]); txns == nil {
			return
		}
		if len(txns) > 0 {
			s.commit(txns)
		}
		clear(txns)
	}
}

var (
	// errMoved: another server wrote, so the decision may be wrong.
	errMoved = errors.New("the store moved on")
	// errUnsure: a transaction that changes no entity may have been committed.
	errUnsure = errors.New("an attempt may have been committed")
)

// errTooLarge: the outcome exceeds the limits of etcd.
type errTooLarge struct{ cause *errs.Error }

func (e errTooLarge) Error() string { return e.cause.Error() }
func (e errTooLarge) Unwrap() error { return e.cause }

// commit applies a batch, retries while there is time, and answers every
// transaction.
func (s *Store) commit(txns []*eval.Txn) {
	began, pause, unsure := time.Now(), retryPause, false
	for {
		out, err := s.attempt(txns, began)
		var large errTooLarge
		switch {
		case err == nil:
			out.Answer(txns, unsure)
			s.metrics.batch(len(txns)-len(out.Rest), time.Since(began))
			if len(out.Rest) == 0 {
				return
			}
			txns, began, pause, unsure = out.Rest, time.Now(), retryPause, false
			continue
		case errors.As(err, &large), refused(err), unsound(err):
			if len(txns) > 1 {
				// Find the transactions that can be applied.
				s.commit(txns[:len(txns)/2])
				s.commit(txns[len(txns)/2:])
				return
			}
			s.finish(txns, mapError(err, "write"))
			return
		case err == errUnsure:
			unsure = true
		case errs.Detail(err, "outcome") == "unknown":
			s.finish(txns, err)
			return
		}
		if time.Since(began) > s.cfg.RetryFor || s.isClosing() {
			if err == errMoved || err == errUnsure {
				err = errs.New(errs.Unavailable, "write: other servers wrote at each of the attempts within %s", s.cfg.RetryFor)
			}
			s.finish(txns, mapError(err, "write"))
			return
		}
		if err != errMoved && err != errUnsure {
			s.logger.Warn("write failed, trying again", "transactions", len(txns), "error", err)
		}
		s.pause(&pause)
	}
}

// unsound reports whether what is stored or written is wrong, as opposed to a
// failed connection.
func unsound(err error) bool {
	var classed *errs.Error
	return errors.As(err, &classed) && (classed.Class == errs.Internal || classed.Class == errs.Corrupt)
}

// pause waits before another attempt, longer each time.
func (s *Store) pause(d *time.Duration) {
	select {
	case <-s.closing:
	case <-time.After(rand.N(*d)):
	}
	*d = min(2**d, maxRetryPause)
}

func (s *Store) finish(txns []*eval.Txn, err error) {
	if !errs.Is(err, errs.InvalidArgument) { // too large for etcd
		s.logger.Error("cannot write", "transactions", len(txns), "error", err)
	}
	for _, t := range txns {
		t.Finish(entity.TxnResult{}, err)
	}
}

// attempt decides about a batch and commits the result.
func (s *Store) attempt(txns []*eval.Txn, began time.Time) (*eval.Outcome, error) {
	s.applying.Lock()
	defer s.applying.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Attempt)
	defer cancel()
	out := s.eval.NewOutcome()
	epoch, base, mod := s.replica.where()
	out.Epoch = epoch
	out.Want(txns)
	l := &loader{ctx: ctx, s: s}
	if err := l.load(out.View); err != nil {
		return nil, err
	}
	at := now()
	if err := out.Evaluate(txns, base, at, l.load); err != nil {
		return nil, err
	}
	w := &writes{s: s, tag: rand.Int64(), at: at}
	w.cmps = append(l.cmps, clientv3.Compare(clientv3.ModRevision(s.keys.state()), "=", mod))
	if err := w.outcome(out); err != nil {
		return nil, err
	}
	if err := w.check(); err != nil {
		return nil, err
	}
	committed, err := s.commitWrites(w, out, began)
	if err == errMoved {
		if e := s.pollLocked(ctx); e != nil {
			return nil, e
		}
	}
	if err != nil {
		return nil, err
	}
	if out.First != 0 {
		s.replica.mu.Lock()
		s.replica.apply(out.View)
		s.replica.rev, s.replica.mod = out.Last, committed
		s.replica.mu.Unlock()
		s.hub.Publish(out)
	}
	return out, nil
}

// commitWrites commits, and repeats an attempt that was not answered: its condition
// keeps it from taking effect twice. It returns the revision of etcd.
func (s *Store) commitWrites(w *writes, out *eval.Outcome, began time.Time) (int64, error) {
	pause := retryPause
	var lost error // of an attempt that may have been committed
	for {
		ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Attempt)
		mod, err := s.commitOnce(ctx, w, out, lost != nil)
		cancel()
		if err == nil || err == errMoved || err == errUnsure {
			return mod, err
		}
		if lost == nil && (refused(err) || !out.Writes()) {
			return 0, err
		}
		if lost == nil {
			s.logger.Warn("no answer to a commit, finding out what happened", "error", err)
			s.metrics.ambiguous.Inc()
		}
		if lost = err; time.Since(began) > s.cfg.RetryFor || s.isClosing() {
			return 0, eval.UnknownOutcome(err)
		}
		s.pause(&pause)
	}
}

func (s *Store) commitOnce(ctx context.Context, w *writes, out *eval.Outcome, again bool) (int64, error) {
	resp, err := s.client.Txn(ctx).If(w.cmps...).Then(w.ops...).Commit()
	switch {
	case err != nil:
		return 0, err
	case resp.Succeeded:
		return resp.Header.Revision, nil
	case !again:
		return 0, errMoved
	case out.First == 0:
		return 0, errUnsure
	}
	get, err := s.client.Get(ctx, s.keys.log(out.First))
	if err != nil {
		return 0, err
	}
	if len(get.Kvs) == 0 {
		return 0, errMoved
	}
	var entry storedLog
	if err := decode(get.Kvs[0], &entry); err != nil {
		return 0, err
	}
	if entry.Tag != w.tag {
		return 0, errMoved
	}
	return get.Kvs[0].ModRevision, nil
}

// writes is one transaction of etcd.
type writes struct {
	s    *Store
	tag  int64
	at   time.Time
	cmps []clientv3.Cmp
	ops  []clientv3.Op
	size int
}

func (w *writes) put(key, value string, opts ...clientv3.OpOption) {
	w.ops, w.size = append(w.ops, clientv3.OpPut(key, value, opts...)), w.size+len(key)+len(value)+opOverhead
}

func (w *writes) delete(key string) {
	w.ops, w.size = append(w.ops, clientv3.OpDelete(key)), w.size+len(key)+opOverhead
}

// opOverhead is more than what the encoding adds to a key and its value.
const opOverhead = 32

// check refuses what exceeds the limits of etcd.
func (w *writes) check() error {
	n, size := max(len(w.ops), len(w.cmps)), w.size
	for _, c := range w.cmps {
		size += len(c.Key) + opOverhead
	}
	if l := w.s.limits; n > l.Ops || size > l.RequestBytes {
		return errTooLarge{errs.New(errs.InvalidArgument, "the transaction needs %d operations and %d bytes; etcd accepts %d and %d", n, size, l.Ops, l.RequestBytes).
			WithHint("use smaller transactions. " + limitHint)}
	}
	return nil
}

// outcome writes the accepted transactions.
func (w *writes) outcome(out *eval.Outcome) error {
	k := w.s.keys
	ended, ending := out.Leases()
	for _, id := range ended {
		w.delete(k.lease(id))
		w.delete(k.alive(id))
	}
	for _, id := range ending {
		value, err := encode(&storedLease{Ended: true})
		if err != nil {
			return err
		}
		w.put(k.lease(id), value)
		w.delete(k.alive(id))
	}
	if out.First == 0 {
		return nil
	}
	d := out.View.EntityDiff()
	for _, key := range d.Delete {
		w.delete(k.entity(key))
	}
	for _, list := range [][]*eval.Object{d.Insert, d.Update} {
		for _, o := range list {
			value, err := encode(&storedEntity{Record: o.Raw, Refs: refsOf(o)})
			if err != nil {
				return err
			}
			w.put(k.entity(eval.KeyOf(o.Rec)), value)
		}
	}
	if err := w.log(out); err != nil {
		return err
	}
	return w.state(storedState{Revision: int64(out.Last), Epoch: out.Epoch, Origin: w.s.replica.origin})
}

func (w *writes) state(st storedState) error {
	st.Format = format
	value, err := encode(&st)
	if err == nil {
		w.put(w.s.keys.state(), value)
	}
	return err
}

// log writes the changes, one key for each revision.
func (w *writes) log(out *eval.Outcome) error {
	rows, err := out.LogRows()
	if err != nil {
		return err
	}
	entries := map[schema.Revision]*storedLog{}
	for _, r := range rows {
		e := entries[r.Revision]
		if e == nil {
			e = &storedLog{At: w.at.UnixMicro(), Tag: w.tag, Request: r.Request, Hash: r.RequestHash}
			entries[r.Revision] = e
		}
		c := storedChange{
			Type: r.Type, Kind: r.Key.Kind, ID: r.Key.ID, PrevRevision: int64(r.PrevRevision), Record: r.Record, Prev: r.Prev, Departed: r.Departed,
		}
		if r.Type != eval.LogDelete {
			o := out.View.Objects[r.Key]
			if o == nil || o.Rec.Revision != r.Revision { // a later transaction of the batch changed it again
				if o, err = w.s.replica.object(r.Record, nil); err != nil {
					return err
				}
			}
			c.Refs = refsOf(o)
		}
		e.Changes = append(e.Changes, c)
	}
	for rev, e := range entries {
		value, err := encode(e)
		if err != nil {
			return err
		}
		w.put(w.s.keys.log(rev), value)
		if e.Request != "" {
			w.put(w.s.keys.request(e.Request), strconv.FormatInt(int64(rev), 10))
		}
	}
	return nil
}
