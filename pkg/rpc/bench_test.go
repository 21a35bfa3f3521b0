package rpc

import (
	"io"
	"sync"
	"sync/atomic"
	"testing"
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
