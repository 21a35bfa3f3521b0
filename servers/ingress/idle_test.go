package ingress

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// shortIdle is the body time-out of tests in which it passes.
const shortIdle = 300 * time.Millisecond

// TestSlowUploadEnds: a client that stops sending its body is answered 408, with
// a small body, a large one and a chunked one, and the sandbox does not see a whole
// request.
func TestSlowUploadEnds(t *testing.T) {
	whole := make(chan error, 10)
	up := upstream(t, func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		whole <- err
	})
	in := start(t, Config{BodyTimeout: shortIdle})
	in.install(oneApp(up.URL))
	for name, head := range map[string]string{
		"small":   "Content-Length: 10\r\n\r\nhalf",
		"large":   "Content-Length: 1000000\r\n\r\nhalf",
		"chunked": "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", in.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\n%s", testHost, head)
			_ = c.SetReadDeadline(time.Now().Add(wait.Limit))
			br := bufio.NewReader(c)
			resp, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != http.StatusRequestTimeout || !strings.Contains(string(body), "body") {
				t.Errorf("%d %q %v", resp.StatusCode, body, err)
			}
			if _, err := br.ReadByte(); !errors.Is(err, io.EOF) {
				t.Errorf("the connection stays: %v", err)
			}
			if name != "small" {
				if err := <-whole; err == nil {
					t.Error("the sandbox took the part for the whole")
				}
			}
		})
	}
}

// steadyBody has one byte after each pause.
type steadyBody struct {
	pause time.Duration
	left  int
}

func (s *steadyBody) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	<-time.After(s.pause)
	s.left--
	return copy(p, "x"), nil
}

// TestSteadyUploadMayTakeLong: a body that makes progress may take longer than the
// time-out, and an answer that takes longer to begin too.
func TestSteadyUploadMayTakeLong(t *testing.T) {
	const idle = 2 * time.Second // long enough for a busy machine
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		<-time.After(idle + idle/4)
		fmt.Fprint(w, n, err)
	})
	in := start(t, Config{BodyTimeout: idle})
	in.install(oneApp(up.URL))
	var both sync.WaitGroup
	for _, size := range []int64{10, -1} {
		both.Go(func() {
			r := request(t, "POST", in.url, testHost)
			r.Body, r.ContentLength = io.NopCloser(&steadyBody{idle / 8, 10}), size
			resp, err := client(t).Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if string(body) != "10 <nil>" || err != nil {
				t.Errorf("%d: %d %q %v", size, resp.StatusCode, body, err)
			}
		})
	}
	both.Wait()
}

// TestStuckSandboxEnds: a sandbox that stops reading a body, or stops in the middle
// of an answer, ends the request; one that streams events may be silent.
func TestStuckSandboxEnds(t *testing.T) {
	release := make(chan struct{})
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/read":
			<-release
			return
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
		case "/length":
			w.Header().Set("Content-Length", "1000000")
		}
		fmt.Fprint(w, "begin")
		_ = http.NewResponseController(w).Flush()
		if r.URL.Path == "/events" {
			<-time.After(3 * shortIdle)
			fmt.Fprint(w, "end")
			return
		}
		<-release
	})
	t.Cleanup(func() { close(release) })
	in := start(t, Config{BodyTimeout: shortIdle, Logger: quiet})
	in.install(oneApp(up.URL))
	c := client(t)

	r := request(t, "POST", in.url+"/read", testHost)
	r.Body, r.ContentLength = io.NopCloser(io.LimitReader(zeros{}, 64<<20)), 64<<20
	if resp, err := c.Do(r); err != nil {
		t.Error(err)
	} else {
		resp.Body.Close()
		if resp.StatusCode != http.StatusGatewayTimeout {
			t.Errorf("a sandbox that does not read: %d", resp.StatusCode)
		}
	}
	for path, want := range map[string]string{"/length": "begin", "/chunked": "begin", "/events": "beginend"} {
		resp, err := c.Do(request(t, "GET", in.url+path, testHost))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != want || (err == nil) != (path == "/events") {
			t.Errorf("%s: %q %v", path, body, err)
		}
	}
}

// TestClientThatDoesNotReadEnds: its request ends, whatever copies the answer.
func TestClientThatDoesNotReadEnds(t *testing.T) {
	ended := make(chan struct{}, 2)
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/length" {
			w.Header().Set("Content-Length", fmt.Sprint(1<<30))
		}
		_, _ = io.Copy(w, io.LimitReader(zeros{}, 1<<30))
		ended <- struct{}{}
	})
	in := start(t, Config{BodyTimeout: shortIdle, Logger: quiet})
	in.install(oneApp(up.URL))
	for _, path := range []string{"/length", "/chunked"} {
		c, err := net.Dial("tcp", in.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, testHost)
		select {
		case <-ended:
		case <-time.After(wait.Limit):
			t.Fatalf("%s: the sandbox still sends", path)
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }
