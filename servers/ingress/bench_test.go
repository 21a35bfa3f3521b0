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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkProxy compares ingress with a tuned httputil.ReverseProxy in front
// of the same backend, with real sockets and a lean client, so that what is
// measured is the proxy:
//
//	go test -run '^$' -bench Proxy -benchtime 3s ./servers/ingress
func BenchmarkProxy(b *testing.B) {
	small := strings.Repeat("x", 200)
	large := strings.Repeat("x", 64<<10)
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
	defer backend.Close()

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
	defer rp.Close()

	for _, load := range []struct{ name, head, body string }{
		{"small", "GET /small HTTP/1.1\r\nHost: shop.localhost\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n", ""},
		{"large", "GET /large HTTP/1.1\r\nHost: shop.localhost\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n", ""},
		{"post", "POST /post HTTP/1.1\r\nHost: shop.localhost\r\nUser-Agent: bench\r\nContent-Length: 1000\r\n\r\n", strings.Repeat("y", 1000)},
	} {
		for _, conns := range []int{1, 16, 64} {
			for _, proxy := range []struct{ name, addr string }{
				{"direct", target.Host}, {"reverseproxy", strings.TrimPrefix(rp.URL, "http://")}, {"ingress", in.addr}} {
				b.Run(fmt.Sprintf("%s/%d/%s", load.name, conns, proxy.name), func(b *testing.B) {
					hammer(b, proxy.addr, conns, load.head+load.body)
				})
			}
		}
	}
}

type benchPool struct{ p sync.Pool }

func (p *benchPool) Get() []byte  { return p.p.Get().([]byte) }
func (p *benchPool) Put(b []byte) { p.p.Put(b) } //nolint:staticcheck // the interface has slices

// hammer sends b.N requests over conns connections.
func hammer(b *testing.B, addr string, conns int, req string) {
	b.ReportAllocs()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	var ready sync.WaitGroup
	begin := make(chan struct{})
	for range conns {
		ready.Add(1)
		wg.Go(func() {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				b.Error(err)
				ready.Done()
				return
			}
			defer c.Close()
			br := bufio.NewReaderSize(c, 64<<10)
			out := []byte(req)
			one := func() error {
				if _, err := c.Write(out); err != nil {
					return err
				}
				return readAnswer(br)
			}
			err = one() // opens the connections behind
			ready.Done()
			<-begin
			for err == nil && left.Add(-1) >= 0 {
				err = one()
			}
			if err != nil {
				b.Error(err)
			}
		})
	}
	ready.Wait()
	b.ResetTimer()
	close(begin)
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
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
