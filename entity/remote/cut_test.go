package remote_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"miren.dev/runtime/api/store"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
)

// proxy passes connections on to target and cuts each after a random number of
// bytes, in whichever direction.
type proxy struct {
	target string
	most   int64
	cuts   atomic.Int64
}

func (p *proxy) serve(l net.Listener) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		wg.Go(func() { p.pass(c) })
	}
}

func (p *proxy) pass(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("unix", p.target)
	if err != nil {
		return
	}
	defer server.Close()
	var left atomic.Int64
	left.Store(200 + rand.Int64N(p.most))
	var wg sync.WaitGroup
	pump := func(dst, src net.Conn) {
		defer client.Close()
		defer server.Close()
		buf := make([]byte, 4<<10)
		for {
			n, err := src.Read(buf)
			if err != nil {
				return
			}
			rest := left.Add(-int64(n))
			if rest <= 0 {
				p.cuts.Add(1)
				_, _ = dst.Write(buf[:max(0, int64(n)+rest)]) // bytes that may still pass
				return
			}
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
	}
	wg.Go(func() { pump(server, client) })
	wg.Go(func() { pump(client, server) })
	wg.Wait()
}

// TestCutConnections: while connections break in the middle of calls, every
// create and every increment ends exactly once, and none with an unknown
// outcome.
func TestCutConnections(t *testing.T) {
	const clients, each = 8, 60
	kinds := storetest.Kinds()
	db := pgtest.Store(t, kinds...)
	srv, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	store.RegisterEntities(srv, remote.NewServer(db, kinds))
	dir := t.TempDir()
	var listeners [2]net.Listener
	for i, name := range []string{"server", "proxy"} {
		if listeners[i], err = net.Listen("unix", filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	p := &proxy{target: listeners[0].Addr().String(), most: 6000}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := srv.Serve(listeners[0]); err != nil {
			t.Error(err)
		}
	})
	serving.Go(func() { p.serve(listeners[1]) })
	t.Cleanup(func() { srv.Close(); listeners[1].Close(); serving.Wait() })
	project := new(storetest.Project)
	if err := entity.Create(t.Context(), db, project); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			cl, err := rpc.NewClient(listeners[1].Addr().String(), rpc.ClientOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			defer cl.Close()
			st := remote.New(cl)
			for n := range each {
				o := &storetest.Thing{
					Meta: schema.Meta{Project: project.ID, Name: fmt.Sprintf("thing-%d-%d", i, n), Labels: map[string]string{"client": fmt.Sprint(i), "n": fmt.Sprint(n)}},
					Spec: storetest.ThingSpec{Color: "red"},
				}
				if err := entity.Create(t.Context(), st, o); err != nil {
					t.Errorf("client %d: create %d: %v", i, n, err)
					return
				}
				o.Status.Count++
				if err := entity.UpdateStatus(t.Context(), st, o); err != nil {
					t.Errorf("client %d: update %d: %v", i, n, err)
					return
				}
			}
		})
	}
	wg.Wait()
	all, token, err := entity.List[storetest.Thing](t.Context(), db, entity.Query{})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != clients*each {
		t.Errorf("%d things, want %d", len(all), clients*each)
	}
	if want := project.Revision + 2*clients*each; token.Revision != want {
		t.Errorf("revision %d, want %d: each write takes one", token.Revision, want)
	}
	for _, o := range all {
		if o.Status.Count != 1 {
			t.Errorf("%s counts %d", o.Name, o.Status.Count)
		}
	}
	if p.cuts.Load() < clients {
		t.Errorf("only %d connections were cut", p.cuts.Load())
	}
	t.Logf("%d connections were cut", p.cuts.Load())
}
