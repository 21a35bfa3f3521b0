package ingress

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Loads of the benchmarks.
var loads = []struct{ name, request string }{
	{"small", "GET /small HTTP/1.1\r\nHost: shop.localhost\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"},
	{"large", "GET /large HTTP/1.1\r\nHost: shop.localhost\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"},
	{"post", "POST /post HTTP/1.1\r\nHost: shop.localhost\r\nUser-Agent: bench\r\nContent-Length: 1000\r\n\r\n" + strings.Repeat("y", 1000)},
}

// benchServers starts a backend, ingress in front of it, and a tuned
// httputil.ReverseProxy in front of it.
func benchServers(b *testing.B) (direct, reverse, ingress string) {
	b.Helper()
	small, large := strings.Repeat("x", 200), strings.Repeat("x", 64<<10)
	mux := http.NewServeMux()
	mux.HandleFunc("/small", says(small))
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(large)))
		_, _ = io.WriteString(w, large)
	})
	mux.HandleFunc("/post", func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n)
	})
	backend := httptest.NewServer(mux)
	b.Cleanup(backend.Close)

	in := start(b, Config{Logger: slog.New(slog.DiscardHandler)})
	in.install(oneApp(backend.URL))

	target, err := url.Parse(backend.URL)
	if err != nil {
		b.Fatal(err)
	}
	pool := &benchPool{}
	pool.p.New = func() any { return make([]byte, 32<<10) }
	rp := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host
			r.SetXForwarded()
		},
		Transport: &http.Transport{MaxIdleConns: 1024, MaxIdleConnsPerHost: 1024, IdleConnTimeout: time.Minute,
			DisableCompression: true, ReadBufferSize: 8 << 10, WriteBufferSize: 8 << 10},
		BufferPool: pool,
	})
	b.Cleanup(rp.Close)
	return target.Host, strings.TrimPrefix(rp.URL, "http://"), in.addr
}

// BenchmarkProxy measures ingress, a tuned httputil.ReverseProxy and the
// backend alone, with real sockets and a lean client:
//
//	go test -run '^$' -bench Proxy -benchtime 3s ./servers/ingress
func BenchmarkProxy(b *testing.B) {
	direct, reverse, ingress := benchServers(b)
	for _, load := range loads {
		for _, conns := range []int{1, 16, 64} {
			for _, way := range []struct{ name, addr string }{{"direct", direct}, {"reverseproxy", reverse}, {"ingress", ingress}} {
				b.Run(fmt.Sprintf("%s/%d/%s", load.name, conns, way.name), func(b *testing.B) {
					h := newHammer(b, way.addr, conns, load.request)
					b.ReportAllocs()
					b.ResetTimer()
					h.send(b, b.N)
					b.StopTimer()
					b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
				})
			}
		}
	}
}

// BenchmarkRatio reports how many requests ingress serves per request of the
// tuned httputil.ReverseProxy. The two take turns of 500 requests, so that a
// busy machine slows both; the metric is the median over the turns.
func BenchmarkRatio(b *testing.B) {
	_, reverse, ingress := benchServers(b)
	for _, load := range loads {
		for _, conns := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("%s/%d", load.name, conns), func(b *testing.B) {
				theirs, ours := newHammer(b, reverse, conns, load.request), newHammer(b, ingress, conns, load.request)
				var ratios []float64
				turn := func(h *hammer) time.Duration {
					begin := time.Now()
					h.send(b, 500)
					return time.Since(begin)
				}
				for b.Loop() {
					first, second := theirs, ours
					if len(ratios)%2 == 1 {
						first, second = ours, theirs
					}
					d1, d2 := turn(first), turn(second)
					if first == ours {
						d1, d2 = d2, d1
					}
					ratios = append(ratios, d1.Seconds()/d2.Seconds())
				}
				slices.Sort(ratios)
				b.ReportMetric(ratios[len(ratios)/2], "x-reverseproxy")
			})
		}
	}
}

type benchPool struct{ p sync.Pool }

func (p *benchPool) Get() []byte { return p.p.Get().([]byte) }

//lint:ignore SA6002 the interface of httputil has slices
func (p *benchPool) Put(b []byte) { p.p.Put(b) }

// hammer has open connections with one kind of request.
type hammer struct {
	request []byte
	conns   []net.Conn
	readers []*bufio.Reader
}

func newHammer(b *testing.B, addr string, conns int, request string) *hammer {
	b.Helper()
	h := &hammer{request: []byte(request)}
	for range conns {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.Close() })
		h.conns, h.readers = append(h.conns, c), append(h.readers, bufio.NewReaderSize(c, 64<<10))
	}
	h.send(b, 2*conns) // opens the connections behind
	return h
}

// send sends n requests over all connections.
func (h *hammer) send(b *testing.B, n int) {
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for i, c := range h.conns {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				_, err := c.Write(h.request)
				if err == nil {
					err = readAnswer(h.readers[i])
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// readAnswer reads one answer with Content-Length, with next to no work.
func readAnswer(br *bufio.Reader) error {
	n := -1
	for first := true; ; first = false {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return err
		}
		if first && !strings.HasPrefix(string(line), "HTTP/1.1 200 ") {
			return fmt.Errorf("answer %q", line)
		}
		if len(line) == 2 {
			break
		}
		if v, ok := strings.CutPrefix(string(line), "Content-Length: "); ok {
			if n, err = strconv.Atoi(strings.TrimSpace(v)); err != nil {
				return err
			}
		}
	}
	if n < 0 {
		return fmt.Errorf("answer without Content-Length")
	}
	_, err := br.Discard(n)
	return err
}
