package ingress

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// raw is a sandbox that answers with exactly these bytes and then closes.
func raw(t *testing.T, answer string) string {
	t.Helper()
	return accepting(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, answer)
		}
	}).Addr().String()
}

func TestBadAnswers(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for _, tt := range []struct {
		name, answer string
		status       int
		body         string
		cut          bool // the body must end early
	}{
		{name: "nothing", answer: "", status: 502},
		{name: "not http", answer: "SSH-2.0-x\r\n", status: 502},
		{name: "half a head", answer: ok + "X: y\r\n", status: 502},
		{name: "bad header", answer: ok + "no colon\r\n\r\n", status: 502},
		{name: "bad name", answer: ok + "a b: c\r\n\r\n", status: 502},
		{name: "folded", answer: ok + "A: b\r\n c\r\n\r\n", status: 502},
		{name: "control", answer: ok + "A: b\x00c\r\n\r\n", status: 502},
		{name: "two lengths", answer: ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", status: 502},
		{name: "length twice", answer: ok + "Content-Length: 2\r\nContent-Length: 2\r\n\r\nab", status: 200, body: "ab"},
		{name: "negative length", answer: ok + "Content-Length: -1\r\n\r\n", status: 502},
		{name: "odd coding", answer: ok + "Transfer-Encoding: gzip\r\n\r\n", status: 502},
		{name: "huge head", answer: ok + "A: " + strings.Repeat("x", 300<<10) + "\r\n\r\n", status: 502},
		{name: "long head", answer: ok + "A: " + strings.Repeat("x", 30<<10) + "\r\nContent-Length: 2\r\n\r\nab", status: 200, body: "ab"},
		{name: "unasked switch", answer: "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", status: 502},
		{name: "until close", answer: ok + "\r\nabc", status: 200, body: "abc"},
		{name: "http 1.0", answer: "HTTP/1.0 200 OK\r\nServer: old\r\n\r\nabc", status: 200, body: "abc"},
		{name: "bare newlines", answer: "HTTP/1.1 200 OK\nContent-Length: 3\n\nabc", status: 200, body: "abc"},
		{name: "both framings", answer: ok + "Content-Length: 100\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", status: 200, body: "abc"},
		{name: "no reason", answer: "HTTP/1.1 200\r\nContent-Length: 1\r\n\r\na", status: 200, body: "a"},
		{name: "short body", answer: ok + "Content-Length: 10\r\n\r\nabc", status: 200, body: "abc", cut: true},
		{name: "short chunks", answer: ok + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", status: 200, body: "abc", cut: true},
		{name: "bad chunk", answer: ok + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n", status: 200, body: "abc", cut: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := start(t, Config{Logger: quiet})
			in.install(oneApp(raw(t, tt.answer)))
			resp, err := client(t).Do(request(t, "GET", in.url, testHost))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if resp.StatusCode != tt.status || (err != nil) != tt.cut || tt.status == 200 && string(b) != tt.body {
				t.Errorf("%d %q %v", resp.StatusCode, b, err)
			}
			if tt.status == 502 && !strings.Contains(string(b), "did not answer properly") {
				t.Errorf("page %q", b)
			}
		})
	}
}

func TestSlowAnswer(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	in := start(t, Config{ResponseHeaderTimeout: 50 * time.Millisecond, Logger: quiet})
	in.install(oneApp(up.URL))
	resp, err := client(t).Do(request(t, "GET", in.url, testHost))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("%d", resp.StatusCode)
	}
}

func TestSlowUploadIsNoSlowAnswer(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		if r.URL.Path == "/" {
			_, _ = io.ReadFull(r.Body, make([]byte, 4))
			fmt.Fprint(w, "before the end, so that the time to answer after it does not matter")
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	in := start(t, Config{ResponseHeaderTimeout: 200 * time.Millisecond, Logger: quiet})
	in.install(oneApp(up.URL))
	for path, want := range map[string]int{"/": 200, "/slow": 504} {
		pr, pw := io.Pipe()
		defer pw.Close()
		go func() {
			for range 4 {
				time.Sleep(100 * time.Millisecond) // in total longer than the timeout
				_, _ = pw.Write([]byte("x"))
			}
			if path == "/slow" {
				pw.Close()
			}
		}()
		r := request(t, "POST", in.url+path, testHost)
		r.Body, r.ContentLength = pr, -1
		resp, err := client(t).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
	}
}

// TestSmuggling: requests whose framing is doubtful are refused or passed on
// with one framing only.
func TestSmuggling(t *testing.T) {
	seen := make(chan string, 10)
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		seen <- fmt.Sprintf("%s %v %q", r.URL.Path, r.TransferEncoding, b)
	})
	in := start(t, Config{})
	in.install(oneApp(up.URL))
	for _, tt := range []struct{ name, request, status, want string }{
		{"both", "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", "200", `/x [chunked] "a"`},
		{"two lengths", "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "400", ""},
		{"odd coding", "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "501", ""},
		{"space before colon", "Content-Length : 3\r\n\r\nabc", "400", ""},
		{"plus", "Content-Length: +3\r\n\r\nabc", "400", ""},
		{"bad chunk", "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := net.Dial("tcp", in.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			fmt.Fprintf(c, "POST /x HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n%s", testHost, tt.request)
			_ = c.SetReadDeadline(time.Now().Add(wait.Limit))
			b, _ := io.ReadAll(c)
			if tt.status != "" && !strings.HasPrefix(string(b), "HTTP/1.1 "+tt.status) {
				t.Errorf("%q", b)
			}
			if tt.want != "" {
				if got := <-seen; got != tt.want {
					t.Errorf("the sandbox saw %s", got)
				}
			}
		})
	}
	for len(seen) > 0 {
		if got := <-seen; !strings.Contains(got, "/x") {
			t.Errorf("the sandbox saw %s", got)
		}
	}
}

// FuzzAnswer sends arbitrary bytes as a sandbox's answer: the parser never
// panics, and an answer that it accepts is valid.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n1\r\na\r\n0\r\nX: y\r\n\r\n",
		"HTTP/1.0 404\r\n\r\nx", "HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade, x-y\r\nX-Y: 1\r\n\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &upConn{br: bufio.NewReaderSize(bytes.NewReader(b), 64)}
		head, err := readHead(c.br)
		if err != nil {
			return
		}
		var re response
		var http11 bool
		if re.status, http11, head, err = parseStatus(head); err != nil {
			return
		}
		h := http.Header{}
		if err := re.parseInto(h, head, http11); err != nil {
			return
		}
		for name, values := range h {
			if hop(name) || strings.ContainsAny(name, " \r\n:") {
				t.Errorf("header %q got through", name)
			}
			for _, v := range values {
				if strings.ContainsAny(v, "\r\n\x00") {
					t.Errorf("value %q got through", v)
				}
			}
		}
		if re.status < 100 || re.status > 999 || re.length < -1 || re.chunked && h["Content-Length"] != nil {
			t.Errorf("%+v %v", re, h)
		}
		re.frame(c, "GET")
		if re.body == nil {
			return
		}
		if _, err := io.Copy(io.Discard, re.body); err == nil && re.chunked {
			_ = readTrailers(c.br, func(name, value string) {
				if strings.ContainsAny(name+value, "\r\n") {
					t.Errorf("trailer %q: %q", name, value)
				}
			})
		}
	})
}
