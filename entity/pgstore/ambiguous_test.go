package pgstore_test

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// The proxy's treatment of the next transaction.
const (
	pass      int32 = iota
	dropReply       // the commit takes effect, its answer is lost
	dropWrite       // the statements after BEGIN are lost
	// The next message with the proxy's mark is lost, or its answer is.
	dropMarked
	dropMarkedReply
)

// proxy stands between a store and its database.
type proxy struct {
	target string
	mode   atomic.Int32
	refuse atomic.Bool // new connections
	cuts   atomic.Int32
	mark   []byte
}

// startProxy returns a proxy and the URL of the database through it.
func startProxy(t *testing.T, dbURL string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(dbURL)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "rtproxy")
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	p := &proxy{target: filepath.Join(q.Get("host"), ".s.PGSQL.5432")}
	l, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if p.refuse.Load() {
				c.Close()
				continue
			}
			wg.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait(); os.RemoveAll(dir) })
	q.Set("host", dir)
	u.RawQuery = q.Encode()
	return p, u.String()
}

func (p *proxy) serve(client net.Conn) {
	server, err := net.Dial("unix", p.target)
	if err != nil {
		client.Close()
		return
	}
	var began atomic.Bool // the store's transaction that will be cut
	var marked atomic.Bool
	pump := func(dst, src net.Conn, allow func([]byte) bool) {
		defer client.Close()
		defer server.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := src.Read(buf)
			if n > 0 {
				if !allow(buf[:n]) {
					p.cuts.Add(1)
					return
				}
				if _, err := dst.Write(buf[:n]); err != nil {
					return
				}
			}
			if err != nil {
				if err != io.EOF {
					return
				}
				return
			}
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		pump(server, client, func(b []byte) bool {
			if p.mark != nil && bytes.Contains(b, p.mark) {
				if p.mode.CompareAndSwap(dropMarked, pass) {
					return false
				}
				marked.Store(p.mode.Load() == dropMarkedReply)
			}
			return !(began.Load() && p.mode.CompareAndSwap(dropWrite, pass))
		})
	}()
	pump(client, server, func(b []byte) bool {
		if marked.Load() && p.mode.CompareAndSwap(dropMarkedReply, pass) {
			return false
		}
		// Only the batcher locks the counter row FOR UPDATE: the answer has
		// three columns, and the first statement is BEGIN.
		if bytes.Contains(b, []byte("BEGIN\x00")) && bytes.Contains(b, []byte("SELECT 1\x00")) && p.mode.Load() == dropWrite {
			began.Store(true)
		}
		if bytes.Contains(b, []byte("NOTIFY\x00")) && bytes.Contains(b, []byte("COMMIT\x00")) && p.mode.CompareAndSwap(dropReply, pass) {
			return false
		}
		return true
	})
	<-done
}

func TestAmbiguousCommit(t *testing.T) {
	for name, mode := range map[string]int32{"committed": dropReply, "not committed": dropWrite} {
		t.Run(name, func(t *testing.T) {
			p, through := startProxy(t, pgtest.URL(t))
			// Without an expirer, which would be cut in the batcher's place.
			s := pgtest.Open(t, pgstore.Config{URL: through, Kinds: storetest.Kinds(), ExpireInterval: time.Hour})
			proj := newProject(t, s)
			o := create(t, s, proj)
			w, err := s.Watch(t.Context(), entity.WatchQuery{})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			if _, err := w.Next(t.Context()); err != nil { // the first bookmark
				t.Fatal(err)
			}
			p.mode.Store(mode)
			// Without a request id: the store resolves the batch itself.
			before := o.Revision
			o.Status.Count = 1
			if err := entity.UpdateStatus(t.Context(), s, o); err != nil {
				t.Fatal(err)
			}
			if p.cuts.Load() != 1 {
				t.Fatalf("%d connections were cut, want 1", p.cuts.Load())
			}
			if o.Revision != before+1 {
				t.Errorf("revision %d, want %d: applied once", o.Revision, before+1)
			}
			got, err := entity.Get[thing](t.Context(), s, o.ID)
			if err != nil || got.Status.Count != 1 || got.Meta.Revision != o.Revision {
				t.Errorf("stored: %+v, %v", got, err)
			}
			evs, err := w.Next(t.Context())
			if err != nil || len(evs) != 1 || evs[0].Record.Revision != o.Revision {
				t.Errorf("watched: %+v, %v", evs, err)
			}
		})
	}
}

// TestUnknownOutcome: when the store cannot find out in time, the error says
// so, and the repeated request finds out.
func TestUnknownOutcome(t *testing.T) {
	for name, mode := range map[string]int32{"committed": dropReply, "not committed": dropWrite} {
		t.Run(name, func(t *testing.T) {
			p, through := startProxy(t, pgtest.URL(t))
			s := pgtest.Open(t, pgstore.Config{URL: through, Kinds: storetest.Kinds(), ExpireInterval: time.Hour, RetryFor: 200 * time.Millisecond})
			proj := newProject(t, s)
			o := newThing(proj)
			op, err := entity.CreateOp(o)
			if err != nil {
				t.Fatal(err)
			}
			p.mode.Store(mode)
			p.refuse.Store(true)
			req := entity.TxnRequest{RequestID: "once", Ops: []entity.Op{op}}
			_, err = s.Txn(t.Context(), req)
			if !errs.Is(err, errs.Unavailable) || errs.Detail(err, "outcome") != "unknown" {
				t.Fatalf("got %v, outcome %q", err, errs.Detail(err, "outcome"))
			}
			p.refuse.Store(false)
			var res entity.TxnResult
			wait.For(t, "the request again", func() bool {
				res, err = s.Txn(t.Context(), req)
				return !errs.Is(err, errs.Unavailable)
			})
			if err != nil {
				t.Fatal(err)
			}
			project, err := entity.Get[storetest.Project](t.Context(), s, proj)
			if err != nil {
				t.Fatal(err)
			}
			if res.Revision != project.Revision+1 || schema.ID(res.Records[0].ID) != o.ID {
				t.Errorf("result %+v", res)
			}
			if next := create(t, s, proj); next.Revision != res.Revision+1 {
				t.Errorf("next revision %d, want %d", next.Revision, res.Revision+1)
			}
		})
	}
}
