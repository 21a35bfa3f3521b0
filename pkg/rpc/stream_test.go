package rpc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

func open(t testing.TB, cl *Client, m *Method, req *echoMsg) Stream {
	t.Helper()
	st, err := cl.Open(t.Context(), &m.MethodInfo, req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}

func TestServerStream(t *testing.T) {
	eachTransport(t, func(t *testing.T, r *fixture) {
		cl := r.dial(t)
		for _, size := range []int{0, 10, 900, 1100, chunkLen, 200 << 10} {
			const n = 50
			st := open(t, cl, mCount, &echoMsg{N: n, Data: bytes.Repeat([]byte{7}, size)})
			for i := range n {
				var m echoMsg
				if err := st.RecvMsg(&m); err != nil || m.N != int64(i) || len(m.Data) != size {
					t.Fatalf("size %d, message %d: %d of %d bytes, %v", size, i, m.N, len(m.Data), err)
				}
			}
			for range 2 {
				if err := st.RecvMsg(new(echoMsg)); err != io.EOF {
					t.Fatalf("at the end: %v", err)
				}
			}
		}
		r.quiet(t, cl)
	})
}

// TestStreamError: what was sent before the error arrives before it.
func TestStreamError(t *testing.T) {
	r := newFixture(t, "tls", Limits{})
	cl := r.dial(t)
	st := open(t, cl, mCount, &echoMsg{N: 3, Text: "no more"})
	for range 3 {
		if err := st.RecvMsg(new(echoMsg)); err != nil {
			t.Fatal(err)
		}
	}
	err := st.RecvMsg(new(echoMsg))
	wantClass(t, err, errs.Conflict, Failed)
	if err := st.SendMsg(&echoMsg{}); err != io.EOF {
		t.Errorf("send after the end: %v", err)
	}
	r.quiet(t, cl)
}

func TestBidirectionalStreamsKeepOrder(t *testing.T) {
	eachTransport(t, func(t *testing.T, r *fixture) {
		cl := r.dial(t)
		var wg sync.WaitGroup
		for i := range 8 {
			st := open(t, cl, mChat, &echoMsg{})
			sizes := make([]int, 100)
			for j := range sizes {
				if sizes[j] = rand.IntN(3000); j%20 == i {
					sizes[j] = rand.IntN(400 << 10)
				}
			}
			wg.Go(func() {
				for j, n := range sizes {
					if err := st.SendMsg(&echoMsg{N: int64(j), Data: bytes.Repeat([]byte{byte(j)}, n)}); err != nil {
						t.Errorf("stream %d send %d: %v", i, j, err)
						return
					}
				}
				if err := st.CloseSend(); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				for j, n := range sizes {
					var m echoMsg
					err := st.RecvMsg(&m)
					if err != nil || m.N != int64(j) || !bytes.Equal(m.Data, bytes.Repeat([]byte{byte(j)}, n)) {
						t.Errorf("stream %d message %d of %d bytes: got %d of %d bytes, %v", i, j, n, m.N, len(m.Data), err)
						return
					}
				}
				if err := st.RecvMsg(new(echoMsg)); err != io.EOF {
					t.Errorf("stream %d end: %v", i, err)
				}
			})
		}
		wg.Wait()
		r.quiet(t, cl)
	})
}

func TestRawBytes(t *testing.T) {
	eachTransport(t, func(t *testing.T, r *fixture) {
		cl := r.dial(t)
		st := open(t, cl, mSink, &echoMsg{Data: make([]byte, 80<<10)}) // a long request too
		want := int64(0)
		for i := range 60 {
			n := i * i * 50
			want += int64(n)
			if k, err := st.Write(make([]byte, n)); k != n || err != nil {
				t.Fatal(k, err)
			}
		}
		if err := st.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := st.Write([]byte("x")); err != io.EOF {
			t.Errorf("write after CloseSend: %v", err)
		}
		var m echoMsg
		if err := st.RecvMsg(&m); err != nil || m.N != want {
			t.Fatal(m.N, want, err)
		}
		if err := st.RecvMsg(&m); err != io.EOF {
			t.Fatal(err)
		}
		r.quiet(t, cl)
	})
}

func TestTypedBytes(t *testing.T) {
	r := newFixture(t, "unix", Limits{})
	cl := r.dial(t)
	up := NewClientStream[Bytes, echoMsg](open(t, cl, mSink, &echoMsg{}))
	b := Bytes("hello")
	if err := up.Send(&b); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(up.Writer(), bytes.NewReader(make([]byte, 100_000))); err != nil {
		t.Fatal(err)
	}
	if err := up.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if m, err := up.Recv(); err != nil || m.N != 100_005 {
		t.Fatal(m, err)
	}
	_ = up.Close()
	down := NewClientStream[None, Bytes](open(t, cl, mSource, &echoMsg{N: 1000}))
	if p, err := down.Recv(); err != nil || len(*p) != 1000 {
		t.Fatal(err)
	}
	h := sha256.New()
	if n, err := io.CopyN(h, down.Reader(), 1_000_000); n != 1_000_000 || err != nil {
		t.Fatal(n, err)
	}
	if err := down.Close(); err != nil {
		t.Fatal(err)
	}
	r.quiet(t, cl)
}

// TestCloseMidStream: closing or canceling ends the handler and gives
// everything back.
func TestCloseMidStream(t *testing.T) {
	eachTransport(t, func(t *testing.T, r *fixture) {
		cl := r.dial(t)
		for i := range 40 {
			ctx, cancel := context.WithCancel(t.Context())
			st, err := cl.Open(ctx, &mSource.MethodInfo, &echoMsg{N: 5000})
			if err != nil {
				t.Fatal(err)
			}
			if i%4 > 0 {
				if _, err := io.CopyN(io.Discard, struct{ io.Reader }{st}, int64(i*3000)+1); err != nil {
					t.Fatal(err)
				}
			}
			if i%2 == 0 {
				_ = st.Close()
				_, err = st.Write([]byte("x"))
				if err != io.EOF {
					t.Errorf("write after Close: %v", err)
				}
			} else {
				cancel()
				for err == nil {
					_, err = st.Read(make([]byte, 100))
				}
				if !errs.Is(err, errs.Canceled) || !errors.Is(err, context.Canceled) {
					t.Errorf("read after cancel: %v", err)
				}
			}
			cancel()
		}
		r.quiet(t, cl)
	})
}

// TestStreamDeadline: a stream ends at the deadline of its context on both sides.
func TestStreamDeadline(t *testing.T) {
	r := newFixture(t, "unix", Limits{})
	cl := r.dial(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	st, err := cl.Open(ctx, &mHold.MethodInfo, &echoMsg{})
	if err != nil {
		t.Fatal(err)
	}
	wantClass(t, st.RecvMsg(new(echoMsg)), errs.DeadlineExceeded, Unknown)
	r.quiet(t, cl)
}

// TestSlowReaders: callers that do not read hold up no other call, and make the
// client keep no more than their windows.
func TestSlowReaders(t *testing.T) {
	eachTransport(t, func(t *testing.T, r *fixture) {
		cl := r.dial(t)
		const slow = 300
		var streams []Stream
		for range slow {
			streams = append(streams, open(t, cl, mSource, &echoMsg{N: 8 << 10}))
		}
		c := cl.cur.Load()
		full := func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			n := 0
			for _, st := range c.streams {
				st.q.mu.Lock()
				if st.q.held > st.q.window || st.q.window > int64(c.lim.StreamWindow) {
					t.Errorf("a call holds %d of a window of %d", st.q.held, st.q.window)
				}
				if st.q.avail < minChunk+headerLen {
					n++
				}
				st.q.mu.Unlock()
			}
			return n == slow
		}
		wait.For(t, "the windows to fill", full)
		sc := r.serverConn(t)
		wait.For(t, "the handlers to wait", func() bool {
			sc.mu.Lock()
			defer sc.mu.Unlock()
			n := 0
			for _, st := range sc.streams {
				if st.starving {
					n++
				}
			}
			return n == slow
		})
		sent := r.echo.calls.Load()
		for range 100 {
			if _, err := call(t, cl, mEcho, &echoMsg{Data: make([]byte, 100<<10)}); err != nil {
				t.Fatal(err)
			}
		}
		fast := open(t, cl, mCount, &echoMsg{N: 500, Data: make([]byte, 16<<10)})
		for range 500 {
			if err := fast.RecvMsg(new(echoMsg)); err != nil {
				t.Fatal(err)
			}
		}
		if n := r.echo.calls.Load() - sent - 100; n != 0 {
			t.Errorf("handlers whose callers do not read wrote %d times", n)
		}
		// They continue when they are read.
		for _, st := range streams[:10] {
			if n, err := io.CopyN(io.Discard, struct{ io.Reader }{st}, 1<<20); err != nil {
				t.Fatal(n, err)
			}
		}
		for _, st := range append(streams, fast) {
			_ = st.Close()
		}
		r.quiet(t, cl)
	})
}

// TestSlowHandler is TestSlowReaders the other way: a handler that does not
// read what is uploaded.
func TestSlowHandler(t *testing.T) {
	r := newFixture(t, "tls", Limits{})
	cl := r.dial(t)
	var wg sync.WaitGroup
	for range 20 {
		st := open(t, cl, mHold, &echoMsg{})
		<-r.echo.entered
		wg.Go(func() {
			for {
				if _, err := st.Write(make([]byte, 50_000)); err != nil {
					return
				}
			}
		})
		t.Cleanup(func() { _ = st.Close() })
	}
	sc := r.serverConn(t)
	wait.For(t, "the windows to fill", func() bool {
		sc.mu.Lock()
		defer sc.mu.Unlock()
		return sc.lim.hello().connWindow-sc.recvAvail > 20*(int64(sc.lim.StreamWindow)-minChunk-headerLen)
	})
	for range 50 {
		if _, err := call(t, cl, mEcho, &echoMsg{Data: make([]byte, 60<<10)}); err != nil {
			t.Fatal(err)
		}
	}
	cc := cl.cur.Load()
	cc.mu.Lock()
	for _, st := range cc.streams {
		go st.cancelWith(errClosed)
	}
	cc.mu.Unlock()
	wg.Wait()
	r.quiet(t, cl)
}

// TestWindowGrows: a fast reader gets a larger window, and gives it back.
func TestWindowGrows(t *testing.T) {
	r := newFixture(t, "unix", Limits{})
	cl := r.dial(t)
	st := open(t, cl, mSource, &echoMsg{N: 32 << 10})
	c := cl.cur.Load()
	wait.For(t, "the first ping's answer", func() bool { return c.rtt.Load() != 0 })
	c.rtt.Store(int64(50 * time.Millisecond)) // as if the server were far away
	if _, err := io.CopyN(io.Discard, struct{ io.Reader }{st}, 256<<20); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	grown := int64(c.lim.Growth) - c.growth
	c.mu.Unlock()
	if grown <= 0 || grown > int64(c.lim.MaxStreamWindow) {
		t.Errorf("the window grew by %d", grown)
	}
	_ = st.Close()
	r.quiet(t, cl)
}

// TestCallsOvertakeBulk: calls are quick while streams saturate the connection.
func TestCallsOvertakeBulk(t *testing.T) {
	r := newFixture(t, "tls", Limits{})
	cl := r.dial(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		st, err := cl.Open(ctx, &mSource.MethodInfo, &echoMsg{N: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { _, _ = io.Copy(io.Discard, struct{ io.Reader }{st}) })
	}
	var worst time.Duration
	for range 200 {
		began := time.Now()
		if _, err := call(t, cl, mEcho, &echoMsg{}); err != nil {
			t.Fatal(err)
		}
		worst = max(worst, time.Since(began))
	}
	if worst > time.Second {
		t.Errorf("a call took %s beside bulk streams", worst)
	}
	cancel()
	wg.Wait()
	r.quiet(t, cl)
}

// TestStreamsAreFair: of streams that all want to send, none is left behind.
func TestStreamsAreFair(t *testing.T) {
	r := newFixture(t, "unix", Limits{})
	cl := r.dial(t)
	var wg sync.WaitGroup
	got := make([]int64, 16)
	ctx, cancel := context.WithCancel(t.Context())
	for i := range got {
		st, err := cl.Open(ctx, &mSource.MethodInfo, &echoMsg{N: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			buf := make([]byte, 64<<10)
			for {
				n, err := st.Read(buf)
				if err != nil {
					return
				}
				if got[i] += int64(n); i == 0 && got[i] > 32<<20 {
					cancel()
				}
			}
		})
	}
	wg.Wait()
	cancel()
	for i, n := range got {
		if n < 4<<20 {
			t.Errorf("stream %d got %d bytes while another got %d", i, n, got[0])
		}
	}
}
