// Package remote carries an entity.Store over RPC: New is the client's side, a
// Store like any other, and NewServer serves one. Both are thin: an error
// crosses with its class and details, and the store's promises hold here too.
//
// Every transaction carries a request id, its caller's or one of its own, so that
// the client can repeat it when the connection is lost: the store then answers with
// the outcome of the first. Only when the server stays away is the error
// Unavailable with detail "outcome"="unknown".
package remote

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"miren.dev/runtime/api/store"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

// maxListed is how many entities a List without a limit returns at most, as
// entity.Query says.
const maxListed = 10_000

// Store is an entity.Store behind a connection. It is safe for concurrent use.
type Store struct {
	c store.EntitiesClient

	prefix string // prefix of request ids
	txns   atomic.Uint64
}

var _ entity.Store = (*Store)(nil)

// New returns the store that the server at the other end of c serves.
func New(c rpc.Conn) *Store {
	return &Store{c: store.NewEntitiesClient(c), prefix: rand.Text()[:16] + "-"}
}

// Get implements entity.Store.
func (s *Store) Get(ctx context.Context, kind string, id schema.ID) (schema.Record, error) {
	resp, err := s.c.Get(ctx, &store.GetRequest{Kind: kind, ID: string(id)})
	if err != nil {
		return schema.Record{}, err
	}
	return resp.Record, nil
}

// List implements entity.Store. The server chooses the size of its pages.
func (s *Store) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	if q.Limit < 0 {
		return entity.Page{}, errs.New(errs.InvalidArgument, "limit %d is negative", q.Limit)
	}
	req := store.ListRequest{Kind: q.Kind, Project: string(q.Project), Name: q.Name, Labels: q.Labels, Cursor: q.Cursor}
	for _, m := range q.Index {
		op, ok := indexOps[m.Op]
		if !ok {
			return entity.Page{}, errs.New(errs.InvalidArgument, "unknown index comparison %d", m.Op)
		}
		req.Index = append(req.Index, store.IndexMatch{Attr: m.Attr, Op: op, Value: m.Value, Upper: m.Upper})
	}
	if o := q.Order; o != nil {
		req.Order = &store.Order{Index: o.Index}
		for _, v := range o.Equal {
			req.Order.Equal = append(req.Order.Equal, indexValue(v))
		}
		if o.Lower != nil {
			v := indexValue(o.Lower)
			req.Order.Lower = &v
		}
		if o.Upper != nil {
			v := indexValue(o.Upper)
			req.Order.Upper = &v
		}
	}
	left := q.Limit
	if left == 0 {
		left = maxListed
	}
	var page entity.Page
	for {
		n := int64(left)
		req.Limit = &n
		resp, err := s.c.List(ctx, &req)
		if err != nil {
			return entity.Page{}, err
		}
		if len(resp.Records) > left {
			return entity.Page{}, errs.New(errs.Internal, "the server sent %d entities where %d were asked for", len(resp.Records), left)
		}
		page.Records = append(page.Records, resp.Records...)
		page.Cursor, page.Token = resp.Cursor, schema.Token{Epoch: resp.Epoch, Revision: schema.Revision(resp.Revision)}
		if left -= len(resp.Records); left == 0 || resp.Cursor == "" {
			return page, nil
		}
		req.Cursor = resp.Cursor
	}
}

func indexValue(v []byte) store.IndexValue {
	if v == nil {
		absent := true
		return store.IndexValue{Absent: &absent}
	}
	return store.IndexValue{Value: v}
}

// Txn implements entity.Store.
func (s *Store) Txn(ctx context.Context, t entity.TxnRequest) (entity.TxnResult, error) {
	req := store.TxnRequest{RequestID: t.RequestID, Ops: make([]store.Op, len(t.Ops))}
	if req.RequestID == "" {
		// The request ids of one client are consecutive, which keeps their
		// index small.
		req.RequestID = s.prefix + strconv.FormatUint(s.txns.Add(1), 36)
	}
	for i := range t.Ops {
		o := &t.Ops[i]
		typ, ok := opTypes[o.Type]
		if !ok {
			return entity.TxnResult{}, errs.New(errs.InvalidArgument, "unknown operation %d", o.Type)
		}
		req.Ops[i] = store.Op{Type: typ, Record: o.Record, If: int64(o.If)}
		if a := o.Add; a != nil {
			req.Ops[i].Add = &store.Addition{Attr: a.Attr, Delta: a.Delta, Min: a.Min, Max: a.Max}
		}
	}
	resp, err := s.c.Txn(rpc.WithIdempotent(ctx), &req)
	if err != nil {
		return entity.TxnResult{}, err
	}
	return entity.TxnResult{Revision: schema.Revision(resp.Revision), Records: resp.Records}, nil
}

// Grant implements entity.Store.
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (entity.Lease, error) {
	l, err := s.c.Grant(ctx, &store.GrantRequest{TTL: ttl})
	return lease(l, err)
}

// KeepAlive implements entity.Store.
func (s *Store) KeepAlive(ctx context.Context, id schema.LeaseID) (entity.Lease, error) {
	l, err := s.c.KeepAlive(ctx, &store.LeaseRequest{ID: string(id)})
	return lease(l, err)
}

// Revoke implements entity.Store.
func (s *Store) Revoke(ctx context.Context, id schema.LeaseID) error {
	return s.c.Revoke(ctx, &store.LeaseRequest{ID: string(id)})
}

func lease(l *store.Lease, err error) (entity.Lease, error) {
	if err != nil {
		return entity.Lease{}, err
	}
	return entity.Lease{ID: schema.LeaseID(l.ID), TTL: l.TTL, ExpiresAt: l.ExpiresAt}, nil
}

// Watch implements entity.Store. The watch continues after ctx ends, until Close.
func (s *Store) Watch(ctx context.Context, q entity.WatchQuery) (entity.Watch, error) {
	req := store.WatchRequest{Project: string(q.Project), Epoch: q.From.Epoch}
	if len(q.Kinds) == 1 {
		req.Kind = q.Kinds[0] // for older servers
	} else {
		req.Kinds = q.Kinds
	}
	for _, id := range q.IDs {
		req.IDs = append(req.IDs, string(id))
	}
	if q.Select != nil {
		req.Select = &store.Selector{Attr: q.Select.Attr, Value: q.Select.Value}
	}
	if q.From != (schema.Token{}) {
		rev := int64(q.From.Revision)
		req.Revision = &rev
	}
	if q.Bookmarks != 0 {
		req.Bookmarks = &q.Bookmarks
	}
	wctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	// Until the watch has begun it ends with ctx.
	stop := context.AfterFunc(ctx, cancel)
	st, err := s.c.Watch(wctx, &req)
	if err == nil {
		_, err = st.Recv()
	}
	if err == nil && !stop() {
		err = errs.New(errs.ClassOf(ctx.Err()), "watch: %w", ctx.Err())
	}
	if err != nil {
		cancel()
		return nil, err
	}
	w := &watch{st: st, cancel: cancel, batches: make(chan []entity.Event), done: make(chan struct{})}
	go w.receive()
	return w, nil
}

// watch is a running watch. It receives one batch ahead; then the server waits,
// and its store decides for how long.
type watch struct {
	st      rpc.ClientStream[rpc.None, store.EventBatch]
	cancel  context.CancelFunc
	batches chan []entity.Event
	done    chan struct{} // closed when receive has returned; err is set
	err     error

	mu     sync.Mutex
	closed bool
}

func (w *watch) receive() {
	defer close(w.done)
	for {
		b, err := w.st.Recv()
		if err != nil {
			w.err = watchError(err)
			return
		}
		evs := make([]entity.Event, len(b.Events))
		for i := range b.Events {
			e := &b.Events[i]
			evs[i] = entity.Event{Type: eventTypesIn[e.Type], Token: schema.Token{Epoch: b.Epoch, Revision: schema.Revision(e.Revision)}}
			if e.Record != nil {
				evs[i].Record = *e.Record
			}
		}
		if len(evs) == 0 {
			continue
		}
		select {
		case w.batches <- evs:
		case <-w.st.Context().Done():
			w.err = errs.New(errs.Canceled, "the watch was closed")
			return
		}
	}
}

// Next implements entity.Watch.
func (w *watch) Next(ctx context.Context) ([]entity.Event, error) {
	w.mu.Lock()
	closed := w.closed
	w.mu.Unlock()
	if closed {
		return nil, errs.New(errs.Canceled, "the watch was closed")
	}
	if err := ctx.Err(); err != nil {
		return nil, errs.New(errs.ClassOf(err), "watch: %w", err)
	}
	select {
	case evs := <-w.batches:
		return evs, nil
	case <-w.done:
		return nil, w.err
	case <-ctx.Done():
		return nil, errs.New(errs.ClassOf(ctx.Err()), "watch: %w", ctx.Err())
	}
}

// Close implements entity.Watch.
func (w *watch) Close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.cancel()
	<-w.done
}

// watchError returns the error of an ended watch: a server that ends it without
// a reason is shutting down.
func watchError(err error) error {
	if errors.Is(err, io.EOF) {
		return errs.New(errs.Unavailable, "the server ended the watch")
	}
	return err
}
