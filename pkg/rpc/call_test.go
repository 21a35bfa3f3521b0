package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/deadline"
	"miren.dev/runtime/testsupport/wait"
)

func call(t testing.TB, c Conn, m *Method, req *echoMsg) (*echoMsg, error) {
	t.Helper()
	resp := new(echoMsg)
	return resp, c.Call(t.Context(), &m.MethodInfo, req, resp)
}

func TestCallSizes(t *testing.T) {
	eachTransport(t, func(t *testing.T, r *fixture) {
		cl := r.dial(t)
		for _, n := range []int{0, 1, 200, maxInline - 20, maxInline, maxInline + 1, 64 << 10, 300 << 10, 5 << 20} {
			data := bytes.Repeat([]byte{byte(n), 1, 2, 3}, n/4+1)[:n]
			resp, err := call(t, cl, mEcho, &echoMsg{Data: data, Text: "x"})
			if err != nil || !bytes.Equal(resp.Data, data) || resp.Text != "x" {
				t.Fatalf("%d bytes: %d came back, %v", n, len(resp.Data), err)
			}
		}
		r.quiet(t, cl)
	})
}

func TestMessageTooLarge(t *testing.T) {
	r := newFixture(t, "unix", Limits{MaxMessage: 100 << 10})
	cl := r.dial(t)
	_, err := call(t, cl, mEcho, &echoMsg{Data: make([]byte, 101<<10)})
	wantClass(t, err, errs.ResourceExhausted, NotStarted)
	if n := r.echo.calls.Load(); n != 0 {
		t.Fatalf("%d calls arrived", n)
	}
	if _, err := call(t, cl, mEcho, &echoMsg{Data: make([]byte, 99<<10)}); err != nil {
		t.Fatal(err)
	}
	r.quiet(t, cl)
}

func TestErrorsCross(t *testing.T) {
	eachTransport(t, func(t *testing.T, r *fixture) {
		cl := r.dial(t)
		for c := range knownClasses {
			_, err := call(t, cl, mFail, &echoMsg{Text: string(c)})
			wantClass(t, err, c, Failed)
			if err.Error() != "it failed: 7" || errs.HintOf(err) != "try again" || errs.Detail(err, "key") != "value" {
				t.Errorf("%s: got %q, hint %q, detail %q", c, err, errs.HintOf(err), errs.Detail(err, "key"))
			}
		}
		_, err := call(t, cl, mPanic, &echoMsg{})
		wantClass(t, err, errs.Internal, Failed)
		missing := &Method{MethodInfo: MethodInfo{Full: "test.Echo/Missing", Stream: StreamNone}}
		_, err = call(t, cl, missing, &echoMsg{})
		wantClass(t, err, errs.Unimplemented, NotStarted)
		err = cl.Call(t.Context(), &mEcho.MethodInfo, "not a message", new(echoMsg))
		wantClass(t, err, errs.InvalidArgument, NotStarted)
		if n := r.echo.calls.Load(); n != 0 {
			t.Errorf("Echo was called %d times", n)
		}
	})
}

func TestErrorIsBounded(t *testing.T) {
	b := getBuffer()
	defer putBuffer(b)
	e := errs.New(errs.NotFound, "%s", strings.Repeat("é", 1<<20)).WithHint("%s", strings.Repeat("h", 1<<20))
	for i := range 100 {
		e = e.With(fmt.Sprint(i, strings.Repeat("k", 1000)), strings.Repeat("v", 1<<20))
	}
	appendError(b, e, Failed)
	if len(b.b) > maxPayload {
		t.Fatalf("%d bytes", len(b.b))
	}
	if err := parseError(b.b); !errs.Is(err, errs.NotFound) {
		t.Fatal(err)
	}
}

func TestContextTravels(t *testing.T) {
	eachTransport(t, func(t *testing.T, r *fixture) {
		cl := r.dial(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ctx = WithTrace(WithRequestID(ctx, "req-1"), "00-trace")
		var resp echoMsg
		if err := cl.Call(ctx, &mMeta.MethodInfo, &echoMsg{}, &resp); err != nil {
			t.Fatal(err)
		}
		if resp.Text != "req-1,00-trace,Meta" || resp.N < 50_000 || resp.N > 60_000 {
			t.Fatalf("got %+v", resp)
		}
		if resp, err := call(t, cl, mMeta, &echoMsg{}); err != nil || strings.HasPrefix(resp.Text, ",") {
			t.Fatalf("a call without a request id got %q, %v", resp.Text, err)
		}
	})
}

func TestDeadlineEndsCall(t *testing.T) {
	eachTransport(t, func(t *testing.T, r *fixture) {
		cl := r.dial(t)
		ctx := deadline.New(t.Context())
		done := make(chan error, 1)
		go func() { done <- cl.Call(ctx, &mBlock.MethodInfo, &echoMsg{}, new(echoMsg)) }()
		<-r.echo.entered
		ctx.Lapse()
		err := <-done
		wantClass(t, err, errs.DeadlineExceeded, Unknown)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v is not context.DeadlineExceeded", err)
		}
		past, cancel := context.WithDeadline(t.Context(), time.Now())
		defer cancel()
		err = cl.Call(past, &mBlock.MethodInfo, &echoMsg{}, new(echoMsg))
		wantClass(t, err, errs.DeadlineExceeded, NotStarted)
		r.quiet(t, cl) // the handler has ended too
	})
}

// The server watches the deadline too: in this test the client does not.
func TestDeadlineOnServer(t *testing.T) {
	r := newFixture(t, "unix", Limits{})
	cl := r.dial(t)
	c := cl.cur.Load()
	st := &stream{notify: make(chan struct{}, 1), sendReady: make(chan struct{}, 1)}
	b := getBuffer()
	if err := b.encode(&echoMsg{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := c.start(ctx, st, &mBlock.MethodInfo, "", b); err != nil {
		t.Fatal(err)
	}
	<-st.notify
	_, _, _, err := st.outcome()
	wantClass(t, err, errs.DeadlineExceeded, Unknown)
}

func TestCancelReachesHandler(t *testing.T) {
	eachTransport(t, func(t *testing.T, r *fixture) {
		cl := r.dial(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- cl.Call(ctx, &mBlock.MethodInfo, &echoMsg{}, new(echoMsg)) }()
		<-r.echo.entered
		cancel()
		err := <-done
		wantClass(t, err, errs.Canceled, Unknown)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v is not context.Canceled", err)
		}
		r.quiet(t, cl)
	})
}

// TestCanceledCallIsNotSent: an open connection would else carry it before anything
// looks at the context.
func TestCanceledCallIsNotSent(t *testing.T) {
	eachTransport(t, func(t *testing.T, r *fixture) {
		cl := r.dial(t)
		if err := cl.Call(t.Context(), &mEcho.MethodInfo, &echoMsg{}, new(echoMsg)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 {
			wantClass(t, cl.Call(ctx, &mEcho.MethodInfo, &echoMsg{}, new(echoMsg)), errs.Canceled, NotStarted)
		}
		_, err := cl.Open(ctx, &mEcho.MethodInfo, &echoMsg{})
		wantClass(t, err, errs.Canceled, NotStarted)
	})
}

func TestConcurrentCalls(t *testing.T) {
	eachTransport(t, func(t *testing.T, r *fixture) {
		cl := r.dial(t)
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() {
				for n := range 200 {
					size := (i*37 + n*101) % 3000
					if n%50 == 0 {
						size = 100 << 10
					}
					data := bytes.Repeat([]byte{byte(i)}, size)
					ctx, cancel := context.WithCancel(t.Context())
					if n%7 == 0 {
						time.AfterFunc(time.Duration(n)*time.Microsecond, cancel)
					}
					var resp echoMsg
					err := cl.Call(ctx, &mEcho.MethodInfo, &echoMsg{Data: data, N: int64(n)}, &resp)
					switch {
					case err != nil && (n%7 != 0 || !errs.Is(err, errs.Canceled)):
						t.Errorf("caller %d call %d: %v", i, n, err)
					case err == nil && (resp.N != int64(n) || !bytes.Equal(resp.Data, data)):
						t.Errorf("caller %d call %d got another's reply", i, n)
					}
					cancel()
				}
			})
		}
		wg.Wait()
		r.quiet(t, cl)
	})
}

// TestMaxCalls: calls beyond the limit wait for their turn.
func TestMaxCalls(t *testing.T) {
	r := newFixture(t, "unix", Limits{MaxCalls: 4})
	cl := r.dial(t)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if err := cl.Call(t.Context(), &mBlock.MethodInfo, &echoMsg{}, new(echoMsg)); err != nil {
				t.Error(err)
			}
		})
	}
	for range 4 {
		<-r.echo.entered
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	err := cl.Call(ctx, &mEcho.MethodInfo, &echoMsg{}, new(echoMsg))
	wantClass(t, err, errs.DeadlineExceeded, NotStarted)
	if n := r.echo.calls.Load(); n != 4 {
		t.Errorf("%d calls run", n)
	}
	close(r.echo.release)
	wg.Wait()
	r.quiet(t, cl)
}

// TestTooManyCalls: a caller that ignores the limit is refused, not served.
func TestTooManyCalls(t *testing.T) {
	r := newFixture(t, "unix", Limits{MaxCalls: 2})
	cl := r.dial(t)
	cl.cur.Load().peer.maxCalls = 100
	errc := make(chan error, 2)
	for range 2 {
		go func() { errc <- cl.Call(t.Context(), &mBlock.MethodInfo, &echoMsg{}, new(echoMsg)) }()
	}
	<-r.echo.entered
	<-r.echo.entered
	_, err := call(t, cl, mEcho, &echoMsg{})
	wantClass(t, err, errs.ResourceExhausted, NotStarted)
	close(r.echo.release)
	for range 2 {
		if err := <-errc; err != nil {
			t.Error(err)
		}
	}
}

func TestLocalCallsAreAuthorised(t *testing.T) {
	r := newFixture(t, "unix", Limits{})
	cl := r.srv.Local(Identity{Name: "me", Roles: []string{"viewer"}, How: "process"})
	defer cl.Close()
	if resp, err := call(t, cl, mPublic, &echoMsg{}); err != nil || resp.Text != "me" {
		t.Fatal(resp.Text, err)
	}
	if _, err := call(t, cl, mEcho, &echoMsg{Data: make([]byte, 1<<20)}); err != nil {
		t.Fatal(err)
	}
	_, err := call(t, cl, mWrite, &echoMsg{})
	wantClass(t, err, errs.PermissionDenied, NotStarted)
}

// TestOutcomeOfLostConnection: calls that were sent are unknown, calls that
// still waited to be sent were not started.
func TestOutcomeOfLostConnection(t *testing.T) {
	near, far := net.Pipe()
	c := newConn(near, true, Limits{}.withDefaults())
	go func() {
		rd := newFrameReader(far)
		_, _, _ = rd.next()
		_, _ = far.Write(appendHello(nil, Limits{}.withDefaults().hello()))
		// The PING that begins every connection, and the beginning of the first call.
		_, _ = io.ReadFull(far, make([]byte, headerLen+8+10))
	}()
	if err := c.handshake(time.Minute); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.run() }()
	// The peer does not read: the first call is in Write, the others behind it.
	results := make(chan error, 5)
	for i := range 5 {
		go func() {
			results <- c.call(t.Context(), &mEcho.MethodInfo, "", &echoMsg{Data: make([]byte, 200)}, new(echoMsg))
		}()
		wait.For(t, "the call to be queued", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.streams) == i+1 && c.handed > headerLen+8
		})
	}
	_ = far.Close()
	count := map[Outcome]int{}
	for range 5 {
		err := <-results
		if !errs.Is(err, errs.Unavailable) {
			t.Errorf("%v has class %s", err, errs.ClassOf(err))
		}
		count[OutcomeOf(err)]++
		if unknown := errs.Detail(err, "outcome") == "unknown"; unknown != (OutcomeOf(err) == Unknown) {
			t.Errorf("%v: detail and outcome disagree", err)
		}
	}
	if count[Unknown] != 1 || count[NotStarted] != 4 {
		t.Errorf("outcomes: %v", count)
	}
	<-ended
	err := c.call(t.Context(), &mEcho.MethodInfo, "", &echoMsg{}, new(echoMsg))
	wantClass(t, err, errs.Unavailable, NotStarted)
}

// TestPeerDies: every call under way ends as unknown, none hangs.
func TestPeerDies(t *testing.T) {
	eachTransport(t, func(t *testing.T, r *fixture) {
		cl := r.dial(t)
		results := make(chan error, 20)
		for range 20 {
			go func() { results <- cl.Call(t.Context(), &mBlock.MethodInfo, &echoMsg{}, new(echoMsg)) }()
		}
		for range 20 {
			<-r.echo.entered
		}
		st, err := cl.Open(t.Context(), &mHold.MethodInfo, &echoMsg{})
		if err != nil {
			t.Fatal(err)
		}
		<-r.echo.entered
		r.killConns()
		for range 20 {
			wantClass(t, <-results, errs.Unavailable, Unknown)
		}
		wantClass(t, st.RecvMsg(new(echoMsg)), errs.Unavailable, Unknown)
		wait.For(t, "the handlers to end", func() bool { return r.conns() == 0 })
		if _, err := call(t, cl, mEcho, &echoMsg{}); err != nil {
			t.Fatalf("after that: %v", err)
		}
	})
}
