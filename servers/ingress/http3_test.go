package ingress

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/quic-go/quic-go/http3"

	"miren.dev/runtime/testsupport/tlstest"
	"miren.dev/runtime/testsupport/wait"
)

// http3Client returns a client that speaks HTTP/3 alone.
func http3Client(t testing.TB, ca *tlstest.Authority) *http.Client {
	t.Helper()
	tr := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), ServerName: testHost}}
	t.Cleanup(func() { tr.Close() })
	return &http.Client{Transport: tr, Timeout: wait.Limit}
}

func do(t testing.TB, c *http.Client, method, url, body string) (*http.Response, string) {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, r)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = testHost
	return ask(t, c, req)
}

// issued are the certificates of an ingress that has one for testHost.
func issued(t *testing.T) (*tlstest.Authority, *keys) {
	t.Helper()
	ca, k := tlstest.New(t), &keys{}
	k.set(issue(t, ca, "p", 1, testHost))
	return ca, k
}

// TestHTTP3: HTTPS names the port by Alt-Svc, at which the same host answers by HTTP/3, with the
// same limits, access log and metrics.
func TestHTTP3(t *testing.T) {
	var log bytes.Buffer
	var mu sync.Mutex
	reg := prometheus.NewRegistry()
	ca, k := issued(t)
	cfg := Config{HTTPSAddrs: []string{"127.0.0.1:0"}, Certificates: k.get, NoRedirect: true, MaxBodyBytes: 1 << 20, Registerer: reg, Gatherer: reg,
		AccessLog: writer(func(b []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return log.Write(b) })}
	in := start(t, cfg)
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("X-Seen", fmt.Sprintf("%s %s %d %v %s", r.Proto, r.Method, r.ContentLength, r.TransferEncoding, r.Header.Get("X-Forwarded-Proto")))
		_, _ = w.Write(b)
		w.Header().Set("X-Sum", fmt.Sprint(len(b)))
	})
	in.install(oneApp(up.URL))
	st := oneApp(up.URL)
	st.Routes = []Route{{ID: "rt-1", Host: testHost, Path: "/", App: "app-1"}}
	in.install(st)
	url := "https://" + in.secure[0].Addr().String() + "/x?token=secret"
	_, port, _ := net.SplitHostPort(in.secure[0].Addr().String())

	h2 := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), ServerName: testHost}, ForceAttemptHTTP2: true}
	t.Cleanup(h2.CloseIdleConnections)
	wait.NoError(t, "the certificate is there", func() error {
		req := request(t, http.MethodGet, url, testHost)
		resp, err := h2.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		return err
	})
	want := `h3=":` + port + `"; ma=86400`
	resp, _ := do(t, &http.Client{Transport: h2}, http.MethodGet, url, "")
	if resp.Proto != "HTTP/2.0" || resp.Header.Get("Alt-Svc") != want {
		t.Errorf("%s %v", resp.Proto, resp.Header)
	}
	if resp, _ := do(t, client(t), http.MethodGet, in.url, ""); resp.Header.Get("Alt-Svc") != "" {
		t.Errorf("without TLS: %v", resp.Header)
	}

	c := http3Client(t, ca)
	for _, tt := range []struct{ method, body, seen string }{
		{http.MethodGet, "", "HTTP/1.1 GET 0 [] https"},
		{http.MethodDelete, "", "HTTP/1.1 DELETE 0 [] https"},
		{http.MethodHead, "", "HTTP/1.1 HEAD 0 [] https"},
		{http.MethodPost, "hello", "HTTP/1.1 POST 5 [] https"},
		{http.MethodGet, "with a body", "HTTP/1.1 GET 11 [] https"},
		{http.MethodPut, strings.Repeat("large", 100_000), "HTTP/1.1 PUT 500000 [] https"},
	} {
		resp, body := do(t, c, tt.method, url, tt.body)
		if resp.Proto != "HTTP/3.0" || resp.StatusCode != 200 || body != tt.body || resp.Header.Get("X-Seen") != tt.seen || resp.Header.Get("Alt-Svc") != "" {
			t.Errorf("%s: %s %s %d bytes, %v", tt.method, resp.Proto, resp.Status, len(body), resp.Header)
		}
		if sum := resp.Trailer.Get("X-Sum"); tt.method != http.MethodHead && sum != fmt.Sprint(len(tt.body)) {
			t.Errorf("%s: trailer %v", tt.method, resp.Trailer)
		}
	}
	if resp, _ := do(t, c, http.MethodPost, url, strings.Repeat("x", 2<<20)); resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a large body: %s", resp.Status)
	}
	req := request(t, http.MethodGet, url, "other.example.com")
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMisdirectedRequest || resp.Header.Get("X-Request-Id") == "" {
		t.Errorf("another host: %s", resp.Status)
	}

	// A body is relayed while it comes.
	pr, pw := io.Pipe()
	req = request(t, http.MethodPost, url, testHost)
	req.Body = pr
	go func() {
		for range 3 {
			fmt.Fprint(pw, "part ")
		}
		pw.Close()
	}()
	resp, err = c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(b) != "part part part " || resp.Header.Get("X-Seen") != "HTTP/1.1 POST -1 [chunked] https" {
		t.Errorf("%q %v", b, resp.Header)
	}
	wait.For(t, "the line in the access log", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(log.String(), `"proto":"HTTP/3.0"`)
	})
	mu.Lock()
	if strings.Contains(log.String(), "secret") {
		t.Error("the access log has the value of a query")
	}
	mu.Unlock()
	if n := counter(t, reg, "runtime_ingress_protocol_requests_total", "http/3"); n < 8 {
		t.Errorf("%v requests are counted", n)
	}
}

// writer is a function that writes.
type writer func([]byte) (int, error)

func (f writer) Write(b []byte) (int, error) { return f(b) }

// counter sums the counters of a name that have a label of a value.
func counter(t *testing.T, reg *prometheus.Registry, name, label string) (sum float64) {
	t.Helper()
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if f.GetName() == name && l.GetValue() == label {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

// TestHTTP3Off: it can be turned off, and a UDP port that another program has is no reason not
// to start: HTTP/3 is served when the port is free.
func TestHTTP3Off(t *testing.T) {
	ca, k := issued(t)
	up := upstream(t, says("hello"))
	st := oneApp(up.URL)
	st.Routes = []Route{{ID: "rt-1", Host: testHost, Path: "/", App: "app-1"}}
	altSvc := func(in *running) string {
		h2 := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), ServerName: testHost}, ForceAttemptHTTP2: true}
		defer h2.CloseIdleConnections()
		var out string
		wait.NoError(t, "an answer by HTTPS", func() error {
			resp, err := h2.RoundTrip(request(t, http.MethodGet, "https://"+in.secure[0].Addr().String(), testHost))
			if err == nil {
				resp.Body.Close()
				out = resp.Header.Get("Alt-Svc")
			}
			return err
		})
		return out
	}
	off := start(t, Config{HTTPSAddrs: []string{"127.0.0.1:0"}, Certificates: k.get, NoHTTP3: true})
	off.install(st)
	if v := altSvc(off); v != "" || off.http3 != nil {
		t.Errorf("off: Alt-Svc %q", v)
	}
	addr := off.secure[0].Addr().String()
	off.stop()

	other, err := net.ListenPacket("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	var mu sync.Mutex
	in := start(t, Config{HTTPSAddrs: []string{addr}, Certificates: k.get,
		Logger: slog.New(slog.NewTextHandler(writer(func(b []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return log.Write(b) }), nil))})
	in.install(st)
	if v := altSvc(in); v != "" {
		t.Errorf("the port is taken: Alt-Svc %q", v)
	}
	mu.Lock()
	if !strings.Contains(log.String(), "no HTTP/3") || !strings.Contains(log.String(), "address already in use") || !strings.Contains(log.String(), "ingress.http3") {
		t.Errorf("log: %s", log.String())
	}
	mu.Unlock()
	other.Close()
	wait.For(t, "HTTP/3 is announced", func() bool { return altSvc(in) != "" })
	if resp, body := do(t, http3Client(t, ca), http.MethodGet, "https://"+addr, ""); resp.ProtoMajor != 3 || body != "hello" {
		t.Errorf("%s %q", resp.Proto, body)
	}
}

// TestHTTP3AfterKill: clients of a process that was killed learn from the next one, which has its
// secret, that their connections are gone, long before they would find out by silence.
func TestHTTP3AfterKill(t *testing.T) {
	ca, k := issued(t)
	up := upstream(t, says("hello"))
	st := oneApp(up.URL)
	st.Routes = []Route{{ID: "rt-1", Host: testHost, Path: "/", App: "app-1"}}
	dir := t.TempDir()
	cfg := Config{HTTPSAddrs: []string{"127.0.0.1:0"}, Certificates: k.get, CertificateFile: filepath.Join(dir, "c"), HTTP3File: filepath.Join(dir, "h"), DrainTimeout: -1}
	first := start(t, cfg)
	first.install(st)
	url := "https://" + first.secure[0].Addr().String()
	c := http3Client(t, ca)
	wait.NoError(t, "an answer", func() error {
		resp, err := c.Do(request(t, http.MethodGet, url, testHost))
		if err == nil {
			resp.Body.Close()
		}
		return err
	})
	cfg.HTTPSAddrs = []string{first.secure[0].Addr().String()}
	for _, s := range first.http3.sockets { // as the kernel does for a process that is killed
		s.Close()
	}
	first.stop()
	second := start(t, cfg)
	second.install(st)
	begin := time.Now()
	wait.NoError(t, "an answer of the next process", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		resp, err := c.Do(request(t, http.MethodGet, url, testHost).WithContext(ctx))
		if err == nil {
			resp.Body.Close()
		}
		return err
	})
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
}

// TestHTTP3Malformed: packets that are no QUIC, or damaged, do not disturb other clients, nor
// the takeover by a successor, which would forward them.
func TestHTTP3Malformed(t *testing.T) {
	up := upstream(t, says("hello"))
	ca := tlstest.New(t)
	s := newSuccession(t, ca, up.URL)
	addr := s.now.secure[0].Addr().String()
	c := http3Client(t, ca)
	answers := func() {
		t.Helper()
		wait.NoError(t, "an answer", func() error {
			resp, err := c.Do(request(t, http.MethodGet, "https://"+addr, testHost))
			if err == nil {
				resp.Body.Close()
			}
			return err
		})
	}
	answers()
	attacker, err := net.Dial("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer attacker.Close()
	attack := func() {
		initial := append([]byte{0xc3, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x44, 0xb0}, make([]byte, 1200)...)
		for n := range 3000 {
			var b []byte
			switch n % 5 {
			case 0:
				b = make([]byte, n%1500)
				rand.Read(b)
			case 1: // a short header with the id of another generation
				b = make([]byte, n%64)
				rand.Read(b)
				if len(b) > 0 {
					b[0] = 0x40
				}
			case 2: // a long header whose lengths lie
				b = bytes.Clone(initial[:n%len(initial)])
				if len(b) > 5 {
					b[5] = byte(n)
				}
			case 3:
				b = bytes.Clone(initial)
				rand.Read(b[6:14])
			case 4: // a version that does not exist
				b = bytes.Clone(initial)
				b[1] = 0xfa
			}
			_, _ = attacker.Write(b)
			if n%100 == 0 {
				answers()
			}
		}
	}
	attack()
	old := s.now
	_, ended := s.takeOver()
	attack()
	wait.Receive(t, "the first ends", ended)
	wait.For(t, "the attacker's connections are forgotten", func() bool { return old.http3.count() == 0 })
	answers()
}
