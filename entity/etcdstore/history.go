package etcdstore

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/entity/records"
	"miren.dev/runtime/pkg/errs"
)

// rotateInterval is how often old records of the history are dropped.
const rotateInterval = time.Hour

// storedRecord is a record of the history, in a chunk of a batch, newest first.
type storedRecord struct {
	_                                                           struct{} `cbor:",toarray"`
	At                                                          int64    // microseconds since 1970
	ID, Project, Actor, SubjectKind, SubjectID, Action, Outcome string
	Request, Detail                                             string
}

func (r *storedRecord) record(stream entity.Stream) entity.HistoryRecord {
	rec := entity.HistoryRecord{
		ID: r.ID, Time: time.UnixMicro(r.At).UTC(), Stream: stream, Project: r.Project, Actor: r.Actor, SubjectKind: r.SubjectKind,
		SubjectID: r.SubjectID, Action: r.Action, Outcome: r.Outcome, RequestID: r.Request,
	}
	if r.Detail != "" {
		rec.Detail = json.RawMessage(r.Detail)
	}
	return rec
}

// Append implements entity.History.
func (s *Store) Append(ctx context.Context, list ...entity.HistoryRecord) error {
	return s.appends.Append(ctx, list)
}

// runAppender appends what is queued until the store is closing.
func (s *Store) runAppender() {
	defer close(s.appenderDone)
	for {
		batch := s.appends.Collect()
		if batch == nil {
			return
		}
		if len(batch) > 0 {
			s.append(batch)
		}
	}
}

// append makes a batch durable, if it fits one transaction, and answers its calls.
func (s *Store) append(batch []*records.Appending) {
	began := time.Now()
	n, err := s.appendAll(batch, began)
	var large errTooLarge
	if errors.As(err, &large) || refused(err) {
		if len(batch) > 1 {
			s.append(batch[:len(batch)/2])
			s.append(batch[len(batch)/2:])
			return
		}
	}
	if err == nil {
		s.metrics.appended(n, time.Since(began))
	}
	for _, a := range batch {
		a.Finish(mapError(err, "append to the history"))
	}
}

// appendAll writes a chunk for each stream, and the time of the newest record: all
// servers use it, so that times are at least a microsecond apart, which keeps
// their order.
func (s *Store) appendAll(batch []*records.Appending, began time.Time) (n int, err error) {
	cols, pause := records.Columns(batch), retryPause
	for {
		done, err := s.appendOnce(cols, began)
		if err == nil && done {
			return len(cols[0]), nil
		}
		if err != nil && (errors.As(err, new(errTooLarge)) || refused(err) || unsound(err) || errs.Detail(err, "outcome") == "unknown") {
			return 0, err
		}
		if time.Since(began) > s.cfg.RetryFor || s.isClosing() {
			if err == nil {
				err = errs.New(errs.Unavailable, "other servers appended at each of the attempts within %s", s.cfg.RetryFor)
			}
			return 0, err
		}
		s.pause(&pause)
	}
}

// appendOnce reports false if another server appended meanwhile.
func (s *Store) appendOnce(cols [10][]string, began time.Time) (done bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Attempt)
	defer cancel()
	resp, err := s.client.Get(ctx, s.keys.appended())
	if err != nil {
		return false, err
	}
	var mod, last int64
	if len(resp.Kvs) > 0 {
		mod = resp.Kvs[0].ModRevision
		if err := decode(resp.Kvs[0], &last); err != nil {
			return false, err
		}
	}
	at := max(now().UnixMicro(), last+1)
	chunks := map[entity.Stream][]storedRecord{}
	for i := range cols[0] {
		stream := entity.Stream(cols[0][i])
		chunks[stream] = append(chunks[stream], storedRecord{
			At: at + int64(i), ID: cols[1][i], Project: cols[2][i], Actor: cols[3][i], SubjectKind: cols[4][i], SubjectID: cols[5][i],
			Action: cols[6][i], Outcome: cols[7][i], Request: cols[8][i], Detail: cols[9][i],
		})
	}
	w := &writes{s: s, cmps: []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(s.keys.appended()), "=", mod)}}
	value, err := encode(at + int64(len(cols[0])) - 1)
	if err != nil {
		return false, err
	}
	w.put(s.keys.appended(), value)
	var first string // key of a chunk
	for stream, chunk := range chunks {
		slices.Reverse(chunk)
		if value, err = encode(chunk); err != nil {
			return false, err
		}
		first = s.keys.history(stream, chunk[0].At)
		w.put(first, value)
	}
	if err := w.check(); err != nil {
		return false, err
	}
	return s.appendWrites(w, first, value, began)
}

// appendWrites commits, and repeats an attempt that was not answered: its condition
// keeps it from taking effect twice. The last chunk tells whether one did.
func (s *Store) appendWrites(w *writes, key, chunk string, began time.Time) (done bool, err error) {
	pause := retryPause
	for lost := false; ; {
		ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Attempt)
		resp, err := s.client.Txn(ctx).If(w.cmps...).Then(w.ops...).Else(clientv3.OpGet(key)).Commit()
		cancel()
		if err == nil {
			if resp.Succeeded || !lost {
				return resp.Succeeded, nil
			}
			kvs := resp.Responses[0].GetResponseRange().Kvs
			return len(kvs) > 0 && string(kvs[0].Value) == chunk, nil // ids of records are never used twice
		}
		if !lost && refused(err) {
			return false, err
		}
		if lost = true; time.Since(began) > s.cfg.RetryFor || s.isClosing() {
			return false, eval.UnknownOutcome(err)
		}
		s.pause(&pause)
	}
}

// Records implements entity.History. It reads the stream, newest first, until the
// page is full: there are no indexes.
func (s *Store) Records(ctx context.Context, q entity.HistoryQuery) (entity.HistoryPage, error) {
	return records.List(q, func(q *entity.HistoryQuery, from records.Cursor) ([]entity.HistoryRecord, error) {
		return s.scan(ctx, q, from)
	})
}

func (s *Store) scan(ctx context.Context, q *entity.HistoryQuery, from records.Cursor) (found []entity.HistoryRecord, err error) {
	below := int64(math.MaxInt64) // records before this time
	if !q.Until.IsZero() {
		below = ceilMicro(q.Until)
	}
	if from.ID != "" {
		below = min(below, from.At)
	}
	// A chunk whose newest record is later may have earlier ones too.
	key, end := s.keys.history(q.Stream, below+maxChunk), s.keys.historyEnd(q.Stream)
	if below > math.MaxInt64-maxChunk {
		key = s.keys.history(q.Stream, math.MaxInt64)
	}
	since := int64(0)
	if !q.Since.IsZero() {
		since = max(1, ceilMicro(q.Since))
		end = s.keys.history(q.Stream, since-1)
	}
	for key < end {
		page, err := retryRead(ctx, s, "list the history", func(ctx context.Context) (*clientv3.GetResponse, error) {
			return s.client.Get(ctx, key, clientv3.WithRange(end), clientv3.WithLimit(pageKeys))
		})
		if err != nil {
			return nil, err
		}
		for _, kv := range page.Kvs {
			var chunk []storedRecord
			if err := decode(kv, &chunk); err != nil {
				return nil, err
			}
			for i := range chunk {
				r := &chunk[i]
				if r.At >= below || r.At < since || !r.matches(q) {
					continue
				}
				if found = append(found, r.record(q.Stream)); len(found) > q.Limit {
					return found, nil
				}
			}
			key = string(kv.Key) + "\x00"
		}
		if !page.More {
			break
		}
	}
	return found, nil
}

// maxChunk is more than a chunk has records, of each microsecond one.
const maxChunk = 1000

// ceilMicro returns the microseconds since 1970, rounded up.
func ceilMicro(t time.Time) int64 { return t.Add(time.Microsecond - 1).UnixMicro() }

func (r *storedRecord) matches(q *entity.HistoryQuery) bool {
	for _, f := range [][2]string{{q.Actor, r.Actor}, {q.SubjectKind, r.SubjectKind}, {q.SubjectID, r.SubjectID}, {q.Action, r.Action}} {
		if f[0] != "" && f[0] != f[1] {
			return false
		}
	}
	return q.Projects == nil || slices.Contains(q.Projects, r.Project)
}

// rotate keeps the history within its retention until ctx ends.
func (s *Store) rotate(ctx context.Context) {
	tick := time.NewTicker(rotateInterval)
	defer tick.Stop()
	for {
		if err := s.RotateHistory(ctx, s.cfg.KeepHistory); err != nil && ctx.Err() == nil {
			s.logger.Warn("cannot rotate the history", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// RotateHistory drops the records that are older than keep; a stream that keep
// does not name has its default. The store does so by itself. What fails for one
// stream does not hold up the others.
func (s *Store) RotateHistory(ctx context.Context, keep map[entity.Stream]time.Duration) error {
	var errList []error
	for _, stream := range entity.Streams {
		before := now().Add(-records.Keep(keep, stream)).UnixMicro()
		attempt, cancel := context.WithTimeout(ctx, s.cfg.Attempt)
		_, err := s.client.Delete(attempt, s.keys.history(stream, before-1), clientv3.WithRange(s.keys.historyEnd(stream)))
		cancel()
		errList = append(errList, mapError(err, "rotate the history"))
	}
	return errors.Join(errList...)
}
