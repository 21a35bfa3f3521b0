package ingress

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"miren.dev/runtime/testsupport/wait"
)

func TestCompression(t *testing.T) {
	text := strings.Repeat("all work and no play ", 1000)
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		w.Header().Set("Content-Type", q.Get("type"))
		for _, h := range []string{"Content-Encoding", "Cache-Control", "Etag"} {
			if v := q.Get(h); v != "" {
				w.Header().Set(h, v)
			}
		}
		body := text
		if n, err := strconv.Atoi(q.Get("n")); err == nil {
			body = text[:n]
		}
		if q.Get("stream") == "" {
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		}
		fmt.Fprint(w, body)
	})
	in := start(t, Config{})
	in.install(routed(t, `{"compress": true}`, "/", up.URL))
	for _, tt := range []struct{ query, accept, want string }{
		{"type=text/html", "gzip", "gzip"},
		{"type=text/html", "gzip, zstd", "zstd"},
		{"type=text/html&stream=1", "gzip, zstd", "zstd"},
		{"type=application/json%3Bcharset=utf-8", "gzip", "gzip"},
		{"type=image/svg%2Bxml", "br, gzip;q=0.5", "gzip"},
		{"type=text/html", "gzip;q=0, identity", ""},
		{"type=text/html", "", ""},
		{"type=image/png", "gzip", ""},
		{"type=text/event-stream&stream=1", "gzip", ""},
		{"type=text/html&n=1000", "gzip", ""},
		{"type=text/html&Content-Encoding=br", "gzip", "br"},
		{"type=text/html&Cache-Control=no-transform", "gzip", ""},
		{"type=text/html&Etag=\"x\"", "gzip", "gzip"},
	} {
		resp, body := visit(t, in, "/?"+tt.query, func(r *http.Request) {
			if tt.accept != "" {
				r.Header.Set("Accept-Encoding", tt.accept)
			}
		})
		if got := resp.Header.Get("Content-Encoding"); got != tt.want {
			t.Errorf("%s accepting %q: %q, want %q", tt.query, tt.accept, got, tt.want)
			continue
		}
		var plain io.Reader = strings.NewReader(body)
		var err error
		switch tt.want {
		case "gzip":
			plain, err = gzip.NewReader(plain)
		case "zstd":
			plain, err = zstd.NewReader(plain)
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(plain)
		if err != nil || !strings.HasPrefix(text, string(b)) || len(b) < 1000 {
			t.Errorf("%s accepting %q: %d bytes, %v", tt.query, tt.accept, len(b), err)
		}
		if (tt.want == "gzip" || tt.want == "zstd") && (len(body) > len(text)/5 || resp.Header.Get("Vary") != "Accept-Encoding") {
			t.Errorf("%s: %d bytes, %v", tt.query, len(body), resp.Header)
		}
		if e := resp.Header.Get("Etag"); e != "" && e != `W/"x"` {
			t.Errorf("etag %s", e)
		}
	}
}

// TestCompressionStreams has each piece of an answer arrive before the next one is
// made, and the sandbox hear of a client that leaves.
func TestCompressionStreams(t *testing.T) {
	next, left := make(chan string), make(chan struct{})
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		for {
			select {
			case s := <-next:
				fmt.Fprintln(w, s)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				close(left)
				return
			}
		}
	})
	in := start(t, Config{})
	in.install(routed(t, `{"compress": true}`, "/", up.URL))
	go func() { next <- "0" }()
	r := request(t, "GET", in.url, "example.com")
	r.Header.Set("Accept-Encoding", "gzip")
	resp, err := client(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	z, err := gzip.NewReader(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(z)
	for i := range 5 {
		line, err := lines.ReadString('\n')
		if err != nil || line != strconv.Itoa(i)+"\n" {
			t.Fatalf("%d: %q %v", i, line, err)
		}
		next <- strconv.Itoa(i + 1)
	}
	resp.Body.Close()
	wait.Receive(t, "the sandbox hears that the client left", left)
}

// TestCompressionOfHalfAnAnswer has the client see that an answer ended early.
func TestCompressionOfHalfAnAnswer(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Content-Length", "100000")
		fmt.Fprint(w, strings.Repeat("x", 50000))
		panic(http.ErrAbortHandler)
	})
	in := start(t, Config{Logger: quiet})
	in.install(routed(t, `{"compress": true}`, "/", up.URL))
	for _, accept := range []string{"gzip", "zstd"} {
		r := request(t, "GET", in.url, "example.com")
		r.Header.Set("Accept-Encoding", accept)
		resp, err := client(t).Do(r)
		if err != nil {
			continue
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err == nil {
			t.Errorf("%s: half an answer looks whole", accept)
		}
	}
}
