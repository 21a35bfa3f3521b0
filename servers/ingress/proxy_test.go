package ingress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

const testHost = "shop.localhost"

func TestPassesRequestAndAnswer(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("read body: %v", err)
		}
		if len(body) > 100 {
			body = fmt.Appendf(nil, "%d %x", len(body), sha256.Sum256(body))
		}
		w.Header().Add("X-Two", "1")
		w.Header().Add("X-Two", "2")
		w.Header().Set("Keep-Alive", "timeout=5")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s %s %s %s", r.Method, r.RequestURI, r.Host, body)
	})
	in := start(t, Config{})
	in.install(oneApp(up.URL))
	c := client(t)
	big := bytes.Repeat([]byte("0123456789abcdef"), 100<<10)
	for _, tt := range []struct {
		method, target string
		body           []byte
		chunked        bool
	}{
		{method: "GET", target: "/"},
		{method: "GET", target: "/a%2Fb/../c//d?x=%20y&z"},
		{method: "OPTIONS", target: "/x"},
		{method: "DELETE", target: "/x"},
		{method: "POST", target: "/x"},
		{method: "POST", target: "/x", body: []byte("small")},
		{method: "PUT", target: "/x", body: []byte("small"), chunked: true},
		{method: "POST", target: "/x", body: big},
		{method: "POST", target: "/x", body: big, chunked: true},
		{method: "PROPFIND", target: "/x", body: []byte("own method")},
	} {
		r := request(t, tt.method, in.url+tt.target, testHost)
		if tt.body != nil {
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(tt.body)), int64(len(tt.body))
			if tt.chunked {
				r.ContentLength = -1
			}
		}
		resp, err := c.Do(r)
		if err != nil {
			t.Fatalf("%+v: %v", tt.target, err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		body := tt.body
		if len(body) > 100 {
			body = fmt.Appendf(nil, "%d %x", len(body), sha256.Sum256(body))
		}
		want := fmt.Sprintf("%s %s %s %s", tt.method, tt.target, testHost, body)
		if err != nil || string(got) != want || resp.StatusCode != http.StatusTeapot {
			t.Errorf("%s %s: %d %q (%v), want %q", tt.method, tt.target, resp.StatusCode, got, err, want)
		}
		if v := resp.Header.Values("X-Two"); len(v) != 2 || resp.Header.Get("Keep-Alive") != "" || resp.Header.Get("X-Request-Id") == "" {
			t.Errorf("header %v", resp.Header)
		}
	}
	if n := in.registry.inflight("")[oneApp(up.URL).Sandboxes[0].ID]; n != 0 {
		t.Errorf("%d requests are still counted", n)
	}
}

func TestHeadAndEmptyAnswers(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/none":
			w.WriteHeader(http.StatusNoContent)
		case "/same":
			w.WriteHeader(http.StatusNotModified)
		case "/untyped":
			w.Header()["Content-Type"] = nil
			fmt.Fprint(w, "<html>")
		default:
			w.Header().Set("Content-Length", "5")
			fmt.Fprint(w, "hello")
		}
	})
	in := start(t, Config{})
	in.install(oneApp(up.URL))
	c := client(t)
	for _, tt := range []struct {
		method, path, want string
		status             int
		length             int64
	}{
		{"HEAD", "/", "", 200, 5}, {"GET", "/", "hello", 200, 5}, {"GET", "/none", "", 204, 0}, {"GET", "/same", "", 304, 0}, {"GET", "/untyped", "<html>", 200, 6},
	} {
		resp, err := c.Do(request(t, tt.method, in.url+tt.path, testHost))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(b) != tt.want || resp.StatusCode != tt.status || resp.ContentLength != tt.length {
			t.Errorf("%s %s: %d %q %d %v", tt.method, tt.path, resp.StatusCode, b, resp.ContentLength, err)
		}
		if tt.path == "/untyped" && resp.Header["Content-Type"] != nil {
			t.Errorf("a content type was made up: %v", resp.Header)
		}
	}
}

func TestForwardingHeaders(t *testing.T) {
	seen := make(chan http.Header, 1)
	up := upstream(t, func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header.Clone() })
	lies := http.Header{
		"X-Forwarded-For": {"1.2.3.4"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"bank.example"}, "X-Real-Ip": {"1.2.3.4"},
		"X_forwarded_for": {"6.6.6.6"}, "X-Forwarded_Host": {"evil"}, "Forwarded": {"for=1.2.3.4"},
		"Connection": {"X-Drop, close"}, "X-Drop": {"x"}, "X-Keep": {"y"}, "Proxy-Authorization": {"z"}, "Te": {"trailers, gzip"},
		"X-Request-Id": {"mine-1"}, "Keep-Alive": {"1"},
	}
	ask := func(t *testing.T, cfg Config) http.Header {
		in := start(t, cfg)
		in.install(oneApp(up.URL))
		conn, err := net.Dial("tcp", in.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n", testHost)
		_ = lies.Write(conn)
		fmt.Fprint(conn, "\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if id := resp.Header.Get("X-Request-Id"); id != "mine-1" {
			t.Errorf("request id %q", id)
		}
		return <-seen
	}
	check := func(t *testing.T, h http.Header, want map[string]string) {
		t.Helper()
		for k, v := range want {
			if got := strings.Join(h.Values(k), "|"); got != v {
				t.Errorf("%s is %q, want %q", k, got, v)
			}
		}
		for k := range h {
			if strings.Contains(k, "_") {
				t.Errorf("%s got through", k)
			}
		}
	}
	common := map[string]string{"X-Drop": "", "X-Keep": "y", "Proxy-Authorization": "", "Te": "trailers", "Keep-Alive": "", "X-Request-Id": "mine-1"}
	t.Run("untrusted", func(t *testing.T) {
		h := ask(t, Config{})
		check(t, h, common)
		check(t, h, map[string]string{"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http", "X-Forwarded-Host": testHost, "X-Real-Ip": "127.0.0.1",
			"Forwarded": `for=127.0.0.1;host="` + testHost + `";proto=http`})
	})
	t.Run("trusted", func(t *testing.T) {
		h := ask(t, Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
		check(t, h, common)
		check(t, h, map[string]string{"X-Forwarded-For": "1.2.3.4, 127.0.0.1", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "bank.example", "X-Real-Ip": "1.2.3.4",
			"Forwarded": `for=1.2.3.4, for=127.0.0.1;host="bank.example";proto=https`})
	})
}

func TestStreamsAnswer(t *testing.T) {
	next := make(chan string)
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		for s := range next {
			fmt.Fprintf(w, "data: %s\n\n", s)
			w.(http.Flusher).Flush()
		}
	})
	in := start(t, Config{})
	in.install(oneApp(up.URL))
	resp, err := client(t).Do(request(t, "GET", in.url, testHost)) // the head comes before any data
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	br := bufio.NewReader(resp.Body)
	for i := range 20 {
		want := strings.Repeat(fmt.Sprint(i), 1+i*1000)
		next <- want
		if got, err := br.ReadString('\n'); err != nil || got != "data: "+want+"\n" {
			t.Fatalf("event %d: %v", i, err)
		}
		_, _ = br.ReadString('\n')
	}
	close(next)
	if rest, err := io.ReadAll(br); err != nil || len(rest) != 0 {
		t.Errorf("end: %q, %v", rest, err)
	}
}

func TestStreamsBothWays(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.(http.Flusher).Flush()
		sc := bufio.NewScanner(r.Body)
		for sc.Scan() {
			fmt.Fprintf(w, "echo %s\n", sc.Text())
			w.(http.Flusher).Flush()
		}
	})
	in := start(t, Config{})
	in.install(oneApp(up.URL))
	pr, pw := io.Pipe()
	r := request(t, "POST", in.url, testHost)
	r.Body, r.ContentLength = pr, -1
	resp, err := client(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	br := bufio.NewReader(resp.Body)
	for i := range 10 {
		fmt.Fprintf(pw, "line %d\n", i)
		if got, err := br.ReadString('\n'); err != nil || got != fmt.Sprintf("echo line %d\n", i) {
			t.Fatalf("%q, %v", got, err)
		}
	}
	pw.Close()
	if _, err := br.ReadString('\n'); err != io.EOF {
		t.Errorf("end: %v", err)
	}
}

func TestTrailers(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Announced")
		b, _ := io.ReadAll(r.Body)
		w.Write(b)
		w.Header().Set("X-Announced", "a:"+r.Trailer.Get("X-Sum"))
		w.Header().Set(http.TrailerPrefix+"X-Sudden", "b")
	})
	in := start(t, Config{})
	in.install(oneApp(up.URL))
	r := request(t, "POST", in.url, testHost)
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader("body")), -1
	r.Trailer = http.Header{"X-Sum": {"42"}}
	resp, err := client(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || string(b) != "body" || resp.Trailer.Get("X-Announced") != "a:42" || resp.Trailer.Get("X-Sudden") != "b" {
		t.Errorf("%q, %v, %v", b, resp.Trailer, err)
	}
}

func TestExpectContinue(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		b, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, len(b))
	})
	in := start(t, Config{})
	in.install(oneApp(up.URL))
	tr := &http.Transport{ExpectContinueTimeout: 2 * wait.Limit}
	defer tr.CloseIdleConnections()
	for _, tt := range []struct {
		path   string
		status int
		body   string
		asked  bool
	}{{"/yes", 200, "100000", true}, {"/no", 403, "no\n", false}} {
		asked := false
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { asked = true }})
		r := request(t, "POST", in.url+tt.path, testHost).WithContext(ctx)
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", 100000))), 100000
		r.Header.Set("Expect", "100-continue")
		begin := time.Now()
		resp, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != tt.status || string(b) != tt.body || asked != tt.asked {
			t.Errorf("%s: %d %q, 100 Continue %v", tt.path, resp.StatusCode, b, asked)
		}
		if d := time.Since(begin); d > wait.Limit {
			t.Errorf("%s took %s", tt.path, d)
		}
	}
}

func TestInformational(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		fmt.Fprint(w, "ok")
	})
	in := start(t, Config{})
	in.install(oneApp(up.URL))
	var hints []string
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		hints = append(hints, fmt.Sprint(code, h["Link"]))
		return nil
	}})
	resp, err := client(t).Do(request(t, "GET", in.url, testHost).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if fmt.Sprint(hints) != "[103 [</style.css>; rel=preload]]" || resp.Header.Get("Link") != "" {
		t.Errorf("hints %v, header %v", hints, resp.Header)
	}
}

func TestLargeBodies(t *testing.T) {
	const size = 20 << 20
	block := bytes.Repeat([]byte("runtime!"), 8<<10)
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/known" {
			w.Header().Set("Content-Length", fmt.Sprint(size))
		}
		for n := 0; n < size; n += len(block) {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	want := sha256.New()
	for n := 0; n < size; n += len(block) {
		want.Write(block)
	}
	in := start(t, Config{})
	in.install(oneApp(up.URL))
	c := client(t)
	for _, path := range []string{"/known", "/chunked", "/known"} {
		resp, err := c.Do(request(t, "GET", in.url+path, testHost))
		if err != nil {
			t.Fatal(err)
		}
		got := sha256.New()
		n, err := io.Copy(got, resp.Body)
		resp.Body.Close()
		if err != nil || n != size || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
			t.Errorf("%s: %d bytes, %v", path, n, err)
		}
	}
}

func TestBodyLimit(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, "took it")
	})
	in := start(t, Config{MaxBodyBytes: 1000})
	in.install(oneApp(up.URL))
	for _, tt := range []struct {
		size    int
		chunked bool
		want    int
	}{{1000, false, 200}, {1001, false, 413}, {1000, true, 200}, {5000, true, 413}} {
		r := request(t, "POST", in.url, testHost)
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", tt.size))), int64(tt.size)
		if tt.chunked {
			r.ContentLength = -1
		}
		resp, err := client(t).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != tt.want {
			t.Errorf("%+v: %d", tt, resp.StatusCode)
		}
	}
}

func TestHeaderLimit(t *testing.T) {
	in := start(t, Config{MaxHeaderBytes: 10 << 10})
	r := request(t, "GET", in.url, testHost)
	r.Header.Set("X-Big", strings.Repeat("x", 64<<10))
	resp, err := client(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("%d", resp.StatusCode)
	}
}

func TestEarlyAnswerToUpload(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, "who are you")
	})
	in := start(t, Config{})
	in.install(oneApp(up.URL))
	pr, pw := io.Pipe() // never ends by itself
	defer pw.Close()
	r := request(t, "POST", in.url, testHost)
	r.Body, r.ContentLength = pr, 1<<20
	resp, err := client(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 401 || string(b) != "who are you" || err != nil {
		t.Errorf("%d %q %v", resp.StatusCode, b, err)
	}
	wait.For(t, "the request is not counted any more", func() bool {
		return in.registry.inflight("")[oneApp(up.URL).Sandboxes[0].ID] == 0
	})
}

func TestClientGoesAway(t *testing.T) {
	gone := make(chan struct{})
	begun := make(chan struct{})
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
		close(gone)
	})
	in := start(t, Config{})
	in.install(oneApp(up.URL))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
	}()
	if _, err := client(t).Do(request(t, "GET", in.url, testHost).WithContext(ctx)); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	wait.Receive(t, "the sandbox sees the end of the request", gone)
}
