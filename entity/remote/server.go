package remote

import (
	"context"

	"miren.dev/runtime/api/store"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

var (
	opTypes = map[entity.OpType]store.OpType{
		entity.OpCreate: store.OpTypeCreate, entity.OpUpdateSpec: store.OpTypeUpdateSpec, entity.OpUpdateStatus: store.OpTypeUpdateStatus,
		entity.OpDelete: store.OpTypeDelete, entity.OpCheck: store.OpTypeCheck, entity.OpAdd: store.OpTypeAdd,
	}
	indexOps = map[entity.IndexOp]store.IndexOp{
		entity.IndexEq: store.IndexOpEq, entity.IndexPrefix: store.IndexOpPrefix, entity.IndexRange: store.IndexOpRange,
	}
	eventTypes = map[entity.EventType]store.EventType{
		entity.EventPut: store.EventTypePut, entity.EventDelete: store.EventTypeDelete, entity.EventBookmark: store.EventTypeBookmark,
		entity.EventLeave: store.EventTypeLeave,
	}
	opTypesIn    = invert(opTypes)
	indexOpsIn   = invert(indexOps)
	eventTypesIn = invert(eventTypes)
)

func invert[K, V comparable](m map[K]V) map[V]K {
	out := make(map[V]K, len(m))
	for k, v := range m {
		out[v] = k
	}
	return out
}

const (
	// pageSize is the largest number of entities in one answer.
	pageSize = 500
	// pageBytes is the intended size of the encoded entities of an answer, in
	// bytes, well below the limit of a message.
	pageBytes = 4 << 20
)

// Server serves a store.
type Server struct {
	st    entity.Store
	kinds []*schema.Kind
}

var _ store.Entities = (*Server)(nil)

// NewServer returns the server for store.RegisterEntities; kinds are the
// store's kinds.
func NewServer(st entity.Store, kinds []*schema.Kind) *Server { return &Server{st: st, kinds: kinds} }

// Kinds implements store.Entities.
func (s *Server) Kinds(context.Context) (*store.KindsResponse, error) {
	resp := new(store.KindsResponse)
	for _, k := range s.kinds {
		resp.Kinds = append(resp.Kinds, store.KindInfo{
			Name: k.Name, Plural: k.Plural, Prefix: k.Prefix, Domain: k.Domain, Scope: string(k.Scope), Short: k.Short, Doc: k.Doc,
		})
	}
	return resp, nil
}

// Get implements store.Entities.
func (s *Server) Get(ctx context.Context, req *store.GetRequest) (*store.GetResponse, error) {
	rec, err := s.st.Get(ctx, req.Kind, schema.ID(req.ID))
	if err != nil {
		return nil, err
	}
	return &store.GetResponse{Record: rec}, nil
}

// List implements store.Entities.
func (s *Server) List(ctx context.Context, req *store.ListRequest) (*store.ListResponse, error) {
	q := entity.Query{
		Kind: req.Kind, Project: schema.ID(req.Project), Name: req.Name, Labels: req.Labels, Cursor: req.Cursor, Limit: pageSize,
	}
	if req.Limit != nil && *req.Limit > 0 {
		q.Limit = int(min(pageSize, *req.Limit))
	}
	for _, m := range req.Index {
		q.Index = append(q.Index, entity.IndexMatch{Attr: m.Attr, Op: indexOpsIn[m.Op], Value: m.Value, Upper: m.Upper})
	}
	if o := req.Order; o != nil {
		q.Order = &entity.Order{Index: o.Index, Lower: bound(o.Lower), Upper: bound(o.Upper)}
		for i := range o.Equal {
			q.Order.Equal = append(q.Order.Equal, bound(&o.Equal[i]))
		}
	}
	for {
		page, err := s.st.List(ctx, q)
		if err != nil {
			return nil, err
		}
		if q.Limit > 1 && size(page.Records) > pageBytes {
			q.Limit = max(1, q.Limit/8)
			continue
		}
		return &store.ListResponse{
			Records: page.Records, Cursor: page.Cursor, Epoch: page.Token.Epoch, Revision: int64(page.Token.Revision),
		}, nil
	}
}

// bound returns an encoded value, nil if there is none.
func bound(v *store.IndexValue) []byte {
	if v == nil || v.Absent != nil && *v.Absent {
		return nil
	}
	return append([]byte{}, v.Value...)
}

func size(recs []schema.Record) int {
	n := 0
	for i := range recs {
		n += recordSize(&recs[i])
	}
	return n
}

// recordSize returns the approximate size of a record on the wire, in bytes.
func recordSize(r *schema.Record) int {
	n := 256 + len(r.Spec) + len(r.Status)
	for k, v := range r.Labels {
		n += len(k) + len(v)
	}
	return n
}

// Txn implements store.Entities.
func (s *Server) Txn(ctx context.Context, req *store.TxnRequest) (*store.TxnResponse, error) {
	t := entity.TxnRequest{RequestID: req.RequestID, Ops: make([]entity.Op, len(req.Ops))}
	var subjects []rpc.Subject
	for i := range req.Ops {
		o := &req.Ops[i]
		subjects = append(subjects, rpc.Subject{Kind: o.Record.Kind, ID: string(o.Record.ID), Op: string(o.Type)})
		t.Ops[i] = entity.Op{Type: opTypesIn[o.Type], Record: o.Record, If: schema.Revision(o.If)}
		if a := o.Add; a != nil {
			t.Ops[i].Add = &entity.Addition{Attr: a.Attr, Delta: a.Delta, Min: a.Min, Max: a.Max}
		}
	}
	rpc.SetSubjects(ctx, subjects...)
	res, err := s.st.Txn(ctx, t)
	if err != nil {
		return nil, err
	}
	return &store.TxnResponse{Revision: int64(res.Revision), Records: res.Records}, nil
}

// Grant implements store.Entities.
func (s *Server) Grant(ctx context.Context, req *store.GrantRequest) (*store.Lease, error) {
	return wireLease(s.st.Grant(ctx, req.TTL))
}

// KeepAlive implements store.Entities.
func (s *Server) KeepAlive(ctx context.Context, req *store.LeaseRequest) (*store.Lease, error) {
	return wireLease(s.st.KeepAlive(ctx, schema.LeaseID(req.ID)))
}

// Revoke implements store.Entities.
func (s *Server) Revoke(ctx context.Context, req *store.LeaseRequest) error {
	rpc.SetSubjects(ctx, rpc.Subject{Kind: "lease", ID: req.ID})
	return s.st.Revoke(ctx, schema.LeaseID(req.ID))
}

func wireLease(l entity.Lease, err error) (*store.Lease, error) {
	if err != nil {
		return nil, err
	}
	return &store.Lease{ID: string(l.ID), TTL: l.TTL, ExpiresAt: l.ExpiresAt}, nil
}

// Watch implements store.Entities. A caller that is too slow makes Send wait;
// the store then ends the watch.
func (s *Server) Watch(ctx context.Context, req *store.WatchRequest, st rpc.ServerStream[rpc.None, store.EventBatch]) error {
	q := entity.WatchQuery{Kinds: req.Kinds, Project: schema.ID(req.Project), From: schema.Token{Epoch: req.Epoch}}
	if req.Kind != "" {
		q.Kinds = append(q.Kinds, req.Kind)
	}
	for _, id := range req.IDs {
		q.IDs = append(q.IDs, schema.ID(id))
	}
	if req.Select != nil {
		q.Select = &entity.Selector{Attr: req.Select.Attr, Value: req.Select.Value}
	}
	if req.Revision != nil {
		q.From.Revision = schema.Revision(*req.Revision)
	}
	if req.Bookmarks != nil {
		if *req.Bookmarks < 0 {
			return errs.New(errs.InvalidArgument, "bookmarks: %s is negative", *req.Bookmarks)
		}
		q.Bookmarks = *req.Bookmarks
	}
	w, err := s.st.Watch(ctx, q)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := st.Send(&store.EventBatch{}); err != nil {
		return err
	}
	for {
		evs, err := w.Next(ctx)
		if err != nil {
			return err
		}
		for len(evs) > 0 {
			n := batch(evs)
			if err := st.Send(wireEvents(evs[:n])); err != nil {
				return err
			}
			evs = evs[n:]
		}
	}
}

// batch returns how many of evs go into one message: whole transactions, up to
// pageBytes, at least one.
func batch(evs []entity.Event) int {
	n, bytes := 0, 0
	for n < len(evs) {
		end, more := n+1, recordSize(&evs[n].Record)
		for end < len(evs) && evs[end].Token == evs[n].Token {
			more += recordSize(&evs[end].Record)
			end++
		}
		if n > 0 && (bytes+more > pageBytes || evs[n].Token.Epoch != evs[0].Token.Epoch) {
			break
		}
		n, bytes = end, bytes+more
	}
	return n
}

func wireEvents(evs []entity.Event) *store.EventBatch {
	b := &store.EventBatch{Epoch: evs[0].Token.Epoch, Events: make([]store.Event, len(evs))}
	for i := range evs {
		e := &evs[i]
		b.Events[i] = store.Event{Type: eventTypes[e.Type], Revision: int64(e.Token.Revision)}
		if e.Type != entity.EventBookmark {
			b.Events[i].Record = &e.Record
		}
	}
	return b
}
