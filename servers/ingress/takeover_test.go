package ingress

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	admin "miren.dev/runtime/api/ingress"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/tlstest"
	"miren.dev/runtime/testsupport/wait"
)

// succession is a row of ingresses of which each takes over from the last.
type succession struct {
	t   *testing.T
	dir string
	cfg Config
	n   int
	now *running
}

func newSuccession(t *testing.T, ca *tlstest.Authority, up string) *succession {
	s := &succession{t: t, dir: t.TempDir()}
	k := &keys{}
	k.set(issue(t, ca, "p", 1, testHost))
	s.cfg = Config{TableFile: filepath.Join(s.dir, "table"), HTTPSAddrs: []string{"127.0.0.1:0"}, Certificates: k.get, NoRedirect: true, DrainTimeout: wait.Limit}
	st := oneApp(up)
	st.Routes = []Route{{ID: "rt-1", Host: testHost, Path: "/", App: "app-1"}}
	if err := saveState(s.cfg.TableFile, st); err != nil {
		t.Fatal(err)
	}
	s.now = s.next()
	s.cfg.Addrs, s.cfg.HTTPSAddrs = []string{s.now.addr}, []string{s.now.secure[0].Addr().String()}
	return s
}

// next starts an ingress that has the sockets of the current one.
func (s *succession) next() *running {
	cfg := s.cfg
	if s.now != nil {
		cfg.TakeOver = s.now.cfg.AdminSocket
	}
	s.n++
	cfg.AdminSocket = filepath.Join(s.dir, fmt.Sprintf("%d.sock", s.n))
	return start(s.t, cfg)
}

func (s *succession) status(r *running) admin.Status {
	s.t.Helper()
	st, err := admin.Client{Socket: r.cfg.AdminSocket}.Status(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return st
}

// takeOver has the next ingress serve, and ends the current one, which drains.
func (s *succession) takeOver() (old *running, ended <-chan struct{}) {
	s.t.Helper()
	next := s.next()
	if !s.status(next).Standby {
		s.t.Error("the next one does not stand by")
	}
	if err := (admin.Client{Socket: next.cfg.AdminSocket}).Serve(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	old, s.now = s.now, next
	done := make(chan struct{})
	go func() { defer close(done); old.stop() }()
	return old, done
}

// echoing answers with what it got, and echoes WebSockets.
func echoing(t *testing.T) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.Copy(w, r.Body)
			return
		}
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, b) != nil {
				return
			}
		}
	}
}

// TestLoadOfPredecessor: a request that waits in an ingress that was replaced is in the
// load that its successor reports, so the service wakes.
func TestLoadOfPredecessor(t *testing.T) {
	up := upstream(t, says("hello"))
	s := newSuccession(t, tlstest.New(t), up.URL)
	s.now.install(oneApp())
	first := s.now
	answered := make(chan string, 1)
	go func() {
		_, body := get(t, client(t), first.url, testHost)
		answered <- body
	}()
	c := admin.Client{Socket: first.cfg.AdminSocket}
	wait.For(t, "the request is held", func() bool { _, l := loadOf(t, c, "v1", 0, 0); return l.Held == 1 })
	_, ended := s.takeOver()
	c = admin.Client{Socket: s.now.cfg.AdminSocket}
	s.now.install(oneApp())
	wait.For(t, "the successor reports it", func() bool { _, l := loadOf(t, c, "v1", 0, 0); return l.Held == 1 })
	first.install(oneApp(up.URL))
	s.now.install(oneApp(up.URL))
	if body := <-answered; body != "hello" {
		t.Errorf("answer %q", body)
	}
	wait.Receive(t, "the end of the first", ended)
	// Its last report counts until the successor sees the end too.
	wait.For(t, "nothing is held", func() bool { _, l := loadOf(t, c, "v1", 0, 0); return l.Held == 0 })
}

// TestTakeoverUnderLoad: ten takeovers while clients of HTTP/1.1, HTTP/2, HTTP/3 and
// WebSocket work, and no request fails. By HTTP/1.1 no request is one that the client
// repeats by itself; by HTTP/2 and HTTP/3 the server names the requests that it did not hear.
func TestTakeoverUnderLoad(t *testing.T) {
	up := upstream(t, echoing(t))
	ca := tlstest.New(t)
	s := newSuccession(t, ca, up.URL)
	secureURL := "https://" + s.now.secure[0].Addr().String()
	var served [4]atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	load := func(kind int, f func() error) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := f(); err != nil {
					t.Errorf("%s: %v", []string{"HTTP/1.1", "HTTP/2", "WebSocket", "HTTP/3"}[kind], err)
					return
				}
				served[kind].Add(1)
			}
		})
	}
	post := func(c *http.Client, url, proto string) func() error {
		return func() error {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("hello"))
			if err != nil {
				return err
			}
			req.Host = testHost
			if proto == "HTTP/1.1" {
				req.GetBody = nil // so that the transport cannot repeat it
			}
			resp, err := c.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 || string(b) != "hello" || resp.Proto != proto {
				return fmt.Errorf("%s %s %q %v", resp.Status, resp.Proto, b, err)
			}
			return nil
		}
	}
	for range 3 {
		load(0, post(client(t), s.now.url, "HTTP/1.1"))
	}
	h2 := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), ServerName: testHost}, ForceAttemptHTTP2: true}
	t.Cleanup(h2.CloseIdleConnections)
	for range 3 {
		load(1, post(&http.Client{Transport: h2, Timeout: wait.Limit}, secureURL, "HTTP/2.0"))
	}
	for range 3 { // each with a connection of its own
		load(3, post(http3Client(t, ca), secureURL, "HTTP/3.0"))
	}
	plain := s.now.url
	for range 2 {
		load(2, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
			defer cancel()
			c, _, err := websocket.Dial(ctx, plain, &websocket.DialOptions{Host: testHost})
			if err != nil {
				return err
			}
			defer c.CloseNow()
			for i := range 200 {
				text := fmt.Sprint(i)
				if err := c.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
					return err
				}
				if _, b, err := c.Read(ctx); err != nil || string(b) != text {
					return fmt.Errorf("message %d: %q %w", i, b, err)
				}
			}
			return c.Close(websocket.StatusNormalClosure, "")
		})
	}
	flows := func() {
		t.Helper()
		var at [4]int64
		for i := range served {
			at[i] = served[i].Load()
		}
		wait.For(t, "requests of each kind", func() bool {
			return served[0].Load() > at[0]+50 && served[1].Load() > at[1]+50 && served[2].Load() > at[2]+1 && served[3].Load() > at[3]+50 || t.Failed()
		})
	}
	var ends []<-chan struct{}
	for range 10 {
		flows()
		_, ended := s.takeOver()
		ends = append(ends, ended)
	}
	flows()
	close(stop)
	wg.Wait()
	for _, e := range ends {
		wait.Receive(t, "the predecessors end", e)
	}
	t.Logf("%d HTTP/1.1, %d HTTP/2, %d WebSocket, %d HTTP/3", served[0].Load(), served[1].Load(), served[2].Load(), served[3].Load())
}

// TestSuccessorAnswersForBoth: while the predecessor works on a request, the
// successor counts it, and a WebSocket stays until the drain ends.
func TestSuccessorAnswersForBoth(t *testing.T) {
	release := make(chan struct{})
	up := upstream(t, func(w http.ResponseWriter, _ *http.Request) { <-release; fmt.Fprint(w, "late") })
	s := newSuccession(t, tlstest.New(t), up.URL)
	late := make(chan string, 1)
	cl, url := client(t), s.now.url
	go func() {
		_, body := get(t, cl, url, testHost)
		late <- body
	}()
	wait.For(t, "the request is under way", func() bool { return s.status(s.now).InFlight == 1 })
	first, ended := s.takeOver()
	_, ended2 := s.takeOver() // the third counts it by the second
	third := s.now
	sandbox := first.table.Load().match(testHost, "/", nil).groups[0].backends[0].ID
	wait.For(t, "the third counts the request of the first", func() bool {
		n, err := admin.Client{Socket: third.cfg.AdminSocket}.Inflight(t.Context(), "v1")
		return err == nil && n.Total == 1 && n.Sandboxes[sandbox] == 1
	})
	if st := s.status(first); !st.Draining {
		t.Errorf("the first: %+v", st)
	}
	close(release)
	if body := wait.Receive(t, "the answer", late); body != "late" {
		t.Errorf("%q", body)
	}
	cl.CloseIdleConnections()
	wait.Receive(t, "the first ends", ended)
	wait.Receive(t, "the second ends", ended2)
	wait.For(t, "nothing is counted", func() bool { return s.status(third).InFlight == 0 })
}

// TestTakeoverIsCutShort: a successor that ends before it serves changes nothing, and
// one whose predecessor ends without a word serves.
func TestTakeoverIsCutShort(t *testing.T) {
	up := upstream(t, says("hello"))
	s := newSuccession(t, tlstest.New(t), up.URL)
	answers := func(by *running) {
		t.Helper()
		c := client(t)
		before := s.status(by)
		if code, body := get(t, c, s.now.url, testHost); code != 200 || body != "hello" || before.Standby {
			t.Errorf("%d %q %+v", code, body, before)
		}
	}
	s.next().stop()
	answers(s.now)
	next := s.next()
	wait.For(t, "the next one follows the current one", func() bool { return next.pred.last() != nil })
	next.pred.conn.Close() // as the kernel does for a process that was killed
	wait.For(t, "the next one serves", func() bool { return !s.status(next).Standby })
	answers(next)
	s.now.stop()
	answers(next)
	if st := s.status(next); st.Table != (schema.Token{}) {
		t.Errorf("%+v", st)
	}
}

// TestSuccessorOfOtherAddresses: the successor opens what its predecessor does not
// have, also an address that overlaps, and no other program's.
func TestSuccessorOfOtherAddresses(t *testing.T) {
	up := upstream(t, says("hello"))
	s := newSuccession(t, tlstest.New(t), up.URL)
	port := s.now.addr[strings.LastIndexByte(s.now.addr, ':'):]
	s.cfg.Addrs, s.cfg.HTTPSAddrs = []string{"0.0.0.0" + port, "127.0.0.1:0"}, nil
	_, ended := s.takeOver()
	wait.Receive(t, "the first ends", ended)
	for _, l := range s.now.listeners {
		url := "http://127.0.0.1" + l.Addr().String()[strings.LastIndexByte(l.Addr().String(), ':'):]
		if code, body := get(t, client(t), url, testHost); code != 200 || body != "hello" {
			t.Errorf("%s: %d %q", url, code, body)
		}
	}
	stranger := upstream(t, says("other"))
	cfg := s.cfg
	cfg.Addrs, cfg.TakeOver, cfg.AdminSocket = []string{strings.TrimPrefix(stranger.URL, "http://")}, s.now.cfg.AdminSocket, ""
	in, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Listen(t.Context()); err == nil {
		t.Error("it shares the address of another program")
	}
}
