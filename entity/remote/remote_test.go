package remote_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/api/store"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

// memory is a minimal store for situations that the conformance suite cannot
// provoke.
type memory struct {
	entity.Store
	records []schema.Record
	txns    atomic.Int64
	mu      sync.Mutex
	ids     []string // request ids, by transaction
	// txn, if set, is called within a transaction.
	txn    func(ctx context.Context, n int64) error
	events chan []entity.Event
}

func (m *memory) List(_ context.Context, q entity.Query) (entity.Page, error) {
	start := 0
	if q.Cursor != "" {
		if _, err := fmt.Sscan(q.Cursor, &start); err != nil {
			return entity.Page{}, errs.New(errs.InvalidArgument, "cursor: %w", err)
		}
	}
	end := min(start+q.Limit, len(m.records))
	p := entity.Page{Records: m.records[start:end], Token: schema.Token{Epoch: "e", Revision: 7}}
	if end < len(m.records) {
		p.Cursor = fmt.Sprint(end)
	}
	return p, nil
}

func (m *memory) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	n := m.txns.Add(1)
	m.mu.Lock()
	m.ids = append(m.ids, req.RequestID)
	m.mu.Unlock()
	if m.txn != nil {
		if err := m.txn(ctx, n); err != nil {
			return entity.TxnResult{}, err
		}
	}
	return entity.TxnResult{Revision: schema.Revision(n)}, nil
}

func (m *memory) Watch(context.Context, entity.WatchQuery) (entity.Watch, error) {
	return memoryWatch{m}, nil
}

type memoryWatch struct{ m *memory }

func (w memoryWatch) Next(ctx context.Context) ([]entity.Event, error) {
	select {
	case evs := <-w.m.events:
		return evs, nil
	case <-ctx.Done():
		return nil, errs.New(errs.ClassOf(ctx.Err()), "watch: %w", ctx.Err())
	}
}
func (memoryWatch) Close() {}

// TestListPages: a listing that is larger than a message arrives completely.
func TestListPages(t *testing.T) {
	m := &memory{}
	for i := range 600 {
		size := 100
		if i%3 == 0 {
			size = 60 << 10
		}
		m.records = append(m.records, schema.Record{Kind: "thing", Meta: schema.Meta{ID: schema.ID(fmt.Sprintf("t-%05d", i))}, Spec: make([]byte, size)})
	}
	st := serve(t, m, nil)
	for _, c := range []struct {
		limit, want int
		more        bool
	}{{0, 600, false}, {1, 1, true}, {501, 501, true}, {600, 600, false}, {5000, 600, false}} {
		p, err := st.List(t.Context(), entity.Query{Kind: "thing", Limit: c.limit})
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Records) != c.want || (p.Cursor != "") != c.more || p.Token != (schema.Token{Epoch: "e", Revision: 7}) {
			t.Errorf("limit %d: %d records, cursor %q, token %v", c.limit, len(p.Records), p.Cursor, p.Token)
		}
		for i, r := range p.Records {
			if r.ID != m.records[i].ID || len(r.Spec) != len(m.records[i].Spec) {
				t.Fatalf("limit %d: record %d is %s", c.limit, i, r.ID)
			}
		}
	}
}

// TestBatchKeepsTransactions: a message never ends within a transaction.
func TestBatchKeepsTransactions(t *testing.T) {
	m := &memory{events: make(chan []entity.Event, 1)}
	var evs []entity.Event
	for rev := range 40 {
		for i := range rev%5 + 1 {
			evs = append(evs, entity.Event{Type: entity.EventPut, Token: schema.Token{Epoch: "e", Revision: schema.Revision(rev + 1)},
				Record: schema.Record{Kind: "thing", Meta: schema.Meta{ID: schema.ID(fmt.Sprint(rev, i))}, Spec: make([]byte, 300<<10)}})
		}
	}
	evs = append(evs, entity.Event{Type: entity.EventBookmark, Token: schema.Token{Epoch: "f", Revision: 3}})
	m.events <- evs
	w, err := serve(t, m, nil).Watch(t.Context(), entity.WatchQuery{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	batches, next := 0, 0
	for next < len(evs) {
		got, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		batches++
		for i, e := range got {
			if e.Token != evs[next].Token || e.Type != evs[next].Type || e.Record.ID != evs[next].Record.ID {
				t.Fatalf("event %d is %v %s, want %v %s", next, e.Token, e.Record.ID, evs[next].Token, evs[next].Record.ID)
			}
			if next++; i == len(got)-1 && next < len(evs) && evs[next].Token == e.Token {
				t.Errorf("a batch ends within transaction %v", e.Token)
			}
		}
	}
	if batches < 5 {
		t.Errorf("%d batches for %d events of 300 KiB", batches, len(evs))
	}
}

// TestLostTransaction: when the connection is lost the client repeats a
// transaction with the same request id, whether or not its caller gave one.
func TestLostTransaction(t *testing.T) {
	m := &memory{}
	srv, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	store.RegisterEntities(srv, remote.NewServer(m, nil))
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	cut := make(chan net.Conn, 10)
	go func() { _ = srv.Serve(cutListener{l.(*net.UnixListener), cut}) }()
	cl, err := rpc.Dial(t.Context(), l.Addr().String(), rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	st := remote.New(cl)
	m.txn = func(ctx context.Context, n int64) error {
		if n%2 == 1 { // the first attempt of each
			_ = (<-cut).Close()
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	op := []entity.Op{{Type: entity.OpCheck, Record: schema.Record{Kind: "thing", Meta: schema.Meta{ID: "x"}}}}
	for i, id := range []string{"", "mine"} {
		res, err := st.Txn(t.Context(), entity.TxnRequest{RequestID: id, Ops: op})
		if err != nil || res.Revision != schema.Revision(2*i+2) {
			t.Errorf("with request id %q: %v, %v", id, res.Revision, err)
		}
		first, again := m.ids[2*i], m.ids[2*i+1]
		if first == "" || first != again || id != "" && first != id {
			t.Errorf("with request id %q: %q was repeated as %q", id, first, again)
		}
	}
	if m.ids[0] == m.ids[2] {
		t.Error("two transactions have one request id")
	}
}

// cutListener passes the connections that it accepts to the test.
type cutListener struct {
	*net.UnixListener
	conns chan net.Conn
}

func (l cutListener) Accept() (net.Conn, error) {
	c, err := l.UnixListener.Accept()
	if err == nil {
		l.conns <- c
	}
	return c, err
}

// TestWatchOfLostServer: the watch ends as Unavailable, so that the caller
// resumes it.
func TestWatchOfLostServer(t *testing.T) {
	m := &memory{events: make(chan []entity.Event)}
	srv, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	store.RegisterEntities(srv, remote.NewServer(m, nil))
	cl := srv.Local(rpc.Identity{Name: "t", Roles: []string{rpc.RoleAdmin}, How: "process"})
	defer cl.Close()
	w, err := remote.New(cl).Watch(t.Context(), entity.WatchQuery{Kinds: []string{"thing"}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := w.Next(ctx); !errs.Is(err, errs.DeadlineExceeded) {
		t.Errorf("Next with a deadline: %v", err)
	}
	m.events <- []entity.Event{{Type: entity.EventBookmark, Token: schema.Token{Epoch: "e", Revision: 1}}}
	if evs, err := w.Next(t.Context()); err != nil || len(evs) != 1 {
		t.Errorf("after that: %v, %v", evs, err)
	}
	srv.Close()
	if _, err := w.Next(t.Context()); !errs.Is(err, errs.Unavailable) {
		t.Errorf("after the server went: %v", err)
	}
}

func TestKinds(t *testing.T) {
	srv, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	store.RegisterEntities(srv, remote.NewServer(&memory{}, []*schema.Kind{{Name: "thing", Plural: "things", Scope: schema.ScopeCluster}}))
	cl := srv.Local(rpc.Identity{Name: "t", Roles: []string{"viewer"}, How: "process"})
	defer cl.Close()
	resp, err := store.NewEntitiesClient(cl).Kinds(t.Context())
	if err != nil || len(resp.Kinds) != 1 || resp.Kinds[0].Plural != "things" || resp.Kinds[0].Scope != "cluster" {
		t.Fatal(resp, err)
	}
}
