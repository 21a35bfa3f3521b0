package rpc

import (
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"miren.dev/runtime/pkg/trace"
	"miren.dev/runtime/pkg/trace/otlp"
	"miren.dev/runtime/pkg/trace/tracetest"
)

func eachBench(b *testing.B, f func(b *testing.B, cl *Client)) {
	for _, network := range []string{"tls", "unix"} {
		b.Run(network, func(b *testing.B) {
			r := newFixture(b, network, Limits{})
			f(b, r.dial(b))
		})
	}
}

func BenchmarkEcho(b *testing.B) {
	for _, callers := range []int{1, 16, 64} {
		b.Run("callers="+itoa(callers), func(b *testing.B) {
			eachBench(b, func(b *testing.B, cl *Client) {
				b.ReportAllocs()
				b.ResetTimer()
				var left atomic.Int64
				left.Store(int64(b.N))
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() {
						req := &echoMsg{Data: make([]byte, 200)}
						for left.Add(-1) >= 0 {
							var resp echoMsg
							if err := cl.Call(b.Context(), &mEcho.MethodInfo, req, &resp); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
			})
		})
	}
}

// BenchmarkTraces makes calls without traces, with traces that are not recorded,
// and with spans of both sides that are sent to a receiver.
func BenchmarkTraces(b *testing.B) {
	for name, sample := range map[string]float64{"off": -1, "unsampled": 0, "on": 1} {
		b.Run(name, func(b *testing.B) {
			var tracer *trace.Tracer
			if sample >= 0 {
				e, err := otlp.New(b.Context(), otlp.Config{Endpoint: tracetest.New(b).URL, Sample: sample, Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(e.Close)
				tracer = e.Tracer()
			}
			r := newFixture(b, "unix", Limits{})
			r.srv.opts.Traces = tracer
			cl := r.dial(b)
			req := &echoMsg{Data: make([]byte, 200)}
			b.ReportAllocs()
			for b.Loop() {
				ctx, span := tracer.Begin(b.Context(), "", "root", trace.Server)
				var resp echoMsg
				if err := cl.Call(ctx, &mEcho.MethodInfo, req, &resp); err != nil {
					b.Fatal(err)
				}
				span.End(nil)
			}
		})
	}
}

// BenchmarkBytes sends raw bytes in chunks of 64 KiB.
func BenchmarkBytes(b *testing.B) {
	eachBench(b, func(b *testing.B, cl *Client) {
		st, err := cl.Open(b.Context(), &mSink.MethodInfo, &echoMsg{})
		if err != nil {
			b.Fatal(err)
		}
		defer st.Close()
		chunk := make([]byte, 64<<10)
		b.SetBytes(int64(len(chunk)))
		b.ResetTimer()
		for range b.N {
			if _, err := st.Write(chunk); err != nil {
				b.Fatal(err)
			}
		}
		var m echoMsg
		if err := st.CloseSend(); err != nil {
			b.Fatal(err)
		}
		if err := st.RecvMsg(&m); err != nil || m.N != int64(b.N)*int64(len(chunk)) {
			b.Fatal(m.N, err)
		}
	})
}

// BenchmarkEvents receives messages of 256 bytes, BenchmarkChunks such of 32
// KiB, as the output of an exec would come.
func BenchmarkEvents(b *testing.B) { benchCount(b, 256) }
func BenchmarkChunks(b *testing.B) { benchCount(b, 32<<10-64) }

func benchCount(b *testing.B, size int) {
	eachBench(b, func(b *testing.B, cl *Client) {
		b.SetBytes(int64(size))
		b.ReportAllocs()
		st, err := cl.Open(b.Context(), &mCount.MethodInfo, &echoMsg{N: int64(b.N), Data: make([]byte, size)})
		if err != nil {
			b.Fatal(err)
		}
		defer st.Close()
		n := 0
		for {
			var m echoMsg
			if err := st.RecvMsg(&m); err == io.EOF {
				break
			} else if err != nil {
				b.Fatal(err)
			}
			n++
		}
		if n != b.N {
			b.Fatal(n)
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	})
}
