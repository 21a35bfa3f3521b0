package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"miren.dev/runtime/pkg/rpc"
)

const (
	echoBytes  = 200
	eventBytes = 256
	chunkBytes = 64 << 10
)

// caller is a connection to an echo service.
type caller interface {
	echo(ctx context.Context, data []byte) error
	// send sends raw chunks for d and returns how many bytes arrived.
	send(ctx context.Context, d time.Duration) (int64, error)
	// receive takes n events.
	receive(ctx context.Context, n int64) error
	close()
}

func benchRPC(ctx context.Context, b *bench) (err error) {
	pki := b.scratch.path("pki")
	cfg, err := clientTLS(pki)
	if err != nil {
		return err
	}
	mine, err := b.start(ctx, "rpc", pki)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mine.stop()) }()
	peer, err := b.start(ctx, "grpc", pki)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.stop()) }()
	cl, err := rpc.Dial(ctx, mine.address, rpc.ClientOptions{TLS: cfg})
	if err != nil {
		return err
	}
	gc, err := grpc.NewClient(peer.address, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		return err
	}
	callers := [2]caller{&ourCaller{cl}, &grpcCaller{gc}}
	for _, c := range callers {
		defer c.close()
	}

	for _, load := range []struct {
		callers int
		goal    float64
	}{{1, 0}, {16, 1.6}} {
		var rate, p50, p99 pair
		if err := b.turns(ctx, 7, func(side int) (figures, error) {
			took, d, err := call(ctx, callers[side], load.callers, b.turn())
			return figures{float64(len(took)) / d.Seconds(), took.ms(50), took.ms(99)}, err
		}, &rate, &p50, &p99); err != nil {
			return err
		}
		what := "calls, " + plural(load.callers, "caller")
		b.report.compare(what, "calls/s", "grpc-go", &rate, load.goal, 0)
		b.report.compare(what+", p50", "ms", "grpc-go", &p50, 0, 0)
		b.report.compare(what+", p99", "ms", "grpc-go", &p99, 0, 0)
	}

	var bytes, events pair
	if err := b.turns(ctx, 5, func(side int) (figures, error) {
		began := time.Now()
		n, err := callers[side].send(ctx, b.turn())
		return figures{float64(n) / 1e6 / time.Since(began).Seconds()}, err
	}, &bytes); err != nil {
		return err
	}
	b.report.compare("stream of 64 KiB chunks", "MB/s", "grpc-go", &bytes, 0, 0)
	if err := b.turns(ctx, 5, func(side int) (figures, error) {
		const n = 200_000
		began := time.Now()
		err := callers[side].receive(ctx, n)
		return figures{n / time.Since(began).Seconds()}, err
	}, &events); err != nil {
		return err
	}
	b.report.compare("stream of 256-byte events", "events/s", "grpc-go", &events, 0, 0)
	return nil
}

// call makes n goroutines call one after the other for d.
func call(ctx context.Context, c caller, n int, d time.Duration) (latencies, time.Duration, error) {
	var mu sync.Mutex
	var all latencies
	var failed error
	var wg sync.WaitGroup
	start := time.Now()
	for range n {
		wg.Go(func() {
			var took latencies
			var err error
			data := make([]byte, echoBytes)
			for t := time.Now(); err == nil && t.Sub(start) < d; {
				err = c.echo(ctx, data)
				now := time.Now()
				took = append(took, now.Sub(t))
				t = now
			}
			mu.Lock()
			all, failed = append(all, took...), errors.Join(failed, err)
			mu.Unlock()
		})
	}
	wg.Wait()
	return all, time.Since(start), failed
}

type ourCaller struct{ cl *rpc.Client }

func (c *ourCaller) close() { c.cl.Close() }

func (c *ourCaller) echo(ctx context.Context, data []byte) error {
	var m note
	if err := c.cl.Call(ctx, &echoMethod.MethodInfo, &note{Data: data}, &m); err != nil {
		return err
	}
	return same(len(m.Data), len(data))
}

func same(got, want int) error {
	if got != want {
		return fmt.Errorf("%d instead of %d", got, want)
	}
	return nil
}

func (c *ourCaller) send(ctx context.Context, d time.Duration) (int64, error) {
	st, err := c.cl.Open(ctx, &sinkMethod.MethodInfo, &note{})
	if err != nil {
		return 0, err
	}
	defer st.Close()
	chunk := make([]byte, chunkBytes)
	for start := time.Now(); time.Since(start) < d; {
		if _, err := st.Write(chunk); err != nil {
			return 0, err
		}
	}
	if err := st.CloseSend(); err != nil {
		return 0, err
	}
	var m note
	err = st.RecvMsg(&m)
	return m.N, err
}

func (c *ourCaller) receive(ctx context.Context, n int64) error {
	st, err := c.cl.Open(ctx, &eventsMethod.MethodInfo, &note{N: n, Data: make([]byte, eventBytes)})
	if err != nil {
		return err
	}
	defer st.Close()
	for i := int64(0); ; i++ {
		var m note
		err := st.RecvMsg(&m)
		if errors.Is(err, io.EOF) {
			return same(int(i), int(n))
		}
		if err != nil {
			return err
		}
	}
}

type grpcCaller struct{ c *grpc.ClientConn }

func (c *grpcCaller) close() { _ = c.c.Close() }

func (c *grpcCaller) echo(ctx context.Context, data []byte) error {
	var m wrapperspb.BytesValue
	if err := c.c.Invoke(ctx, "/bench.Echo/Echo", wrapperspb.Bytes(data), &m); err != nil {
		return err
	}
	return same(len(m.Value), len(data))
}

func (c *grpcCaller) send(ctx context.Context, d time.Duration) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := c.c.NewStream(ctx, &grpcService.Streams[0], "/bench.Echo/Sink")
	if err != nil {
		return 0, err
	}
	chunk := wrapperspb.Bytes(make([]byte, chunkBytes))
	for start := time.Now(); time.Since(start) < d; {
		if err := st.SendMsg(chunk); err != nil {
			return 0, err
		}
	}
	if err := st.CloseSend(); err != nil {
		return 0, err
	}
	var m wrapperspb.Int64Value
	err = st.RecvMsg(&m)
	return m.Value, err
}

func (c *grpcCaller) receive(ctx context.Context, n int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := c.c.NewStream(ctx, &grpcService.Streams[1], "/bench.Echo/Events")
	if err != nil {
		return err
	}
	if err := errors.Join(st.SendMsg(wrapperspb.Int64(n)), st.CloseSend()); err != nil {
		return err
	}
	for i := int64(0); ; i++ {
		var m wrapperspb.BytesValue
		err := st.RecvMsg(&m)
		if errors.Is(err, io.EOF) {
			return same(int(i), int(n))
		}
		if err != nil {
			return err
		}
	}
}
