package ingress

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/coder/websocket"
	"github.com/quic-go/quic-go/http3"
	"golang.org/x/net/http2"

	"miren.dev/runtime/testsupport/tlstest"
	"miren.dev/runtime/testsupport/wait"
)

// TestMain has net/http accept extended CONNECT, as the ingress process does: it reads the
// setting once, when the program starts.
func TestMain(m *testing.M) {
	if env := os.Getenv("GODEBUG"); !strings.Contains(env, ExtendedConnect) {
		os.Setenv("GODEBUG", strings.TrimPrefix(env+","+ExtendedConnect, ","))
		exe, err := os.Executable()
		if err == nil {
			err = syscall.Exec(exe, os.Args, os.Environ())
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// extended opens WebSockets by extended CONNECT for websocket.Dial, which speaks HTTP/1.1.
type extended struct {
	rt       http.RoundTripper
	protocol string // default: websocket

	mu     sync.Mutex
	status int // of the last answer
}

func (e *extended) RoundTrip(r *http.Request) (*http.Response, error) {
	pr, pw := io.Pipe()
	out := r.Clone(context.WithoutCancel(r.Context())) // that of the handshake
	out.Method, out.Body, out.ContentLength = http.MethodConnect, pr, -1
	protocol := e.protocol
	if protocol == "" {
		protocol = "websocket"
	}
	if _, ok := e.rt.(*http3.Transport); ok {
		out.Proto = protocol
	} else {
		out.Header[":protocol"] = []string{protocol}
	}
	key := r.Header.Get("Sec-WebSocket-Key")
	for _, name := range []string{"Connection", "Upgrade", "Sec-WebSocket-Key"} {
		out.Header.Del(name)
	}
	resp, err := e.rt.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.status = resp.StatusCode
	e.mu.Unlock()
	if resp.StatusCode != http.StatusOK {
		return resp, nil
	}
	for _, name := range []string{"Connection", "Upgrade", "Sec-Websocket-Accept", "Content-Length"} {
		if resp.Header.Get(name) != "" {
			return nil, fmt.Errorf("the answer has %s", name)
		}
	}
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	resp.StatusCode = http.StatusSwitchingProtocols
	resp.Header.Set("Connection", "Upgrade")
	resp.Header.Set("Upgrade", "websocket")
	resp.Header.Set("Sec-WebSocket-Accept", base64.StdEncoding.EncodeToString(sum[:]))
	resp.Body = &duplex{resp.Body, pw}
	return resp, nil
}

type duplex struct {
	io.ReadCloser
	w *io.PipeWriter
}

func (d *duplex) Write(b []byte) (int, error) { return d.w.Write(b) }
func (d *duplex) Close() error                { return errors.Join(d.w.Close(), d.ReadCloser.Close()) }

// eachProtocol runs a test by HTTP/2 and by HTTP/3.
func eachProtocol(t *testing.T, f func(t *testing.T, ca *tlstest.Authority, rt func() http.RoundTripper, proto string)) {
	t.Run("HTTP/2", func(t *testing.T) {
		ca := tlstest.New(t)
		f(t, ca, func() http.RoundTripper {
			h2 := &http2.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), ServerName: testHost}} // that of net/http refuses the header
			t.Cleanup(h2.CloseIdleConnections)
			return h2
		}, "HTTP/2.0")
	})
	t.Run("HTTP/3", func(t *testing.T) {
		ca := tlstest.New(t)
		f(t, ca, func() http.RoundTripper { return http3Client(t, ca).Transport }, "HTTP/3.0")
	})
}

// dialExtended opens a WebSocket. The ingress may not have its certificate yet.
func dialExtended(t *testing.T, in *running, e *extended) (*websocket.Conn, *http.Response, error) {
	t.Helper()
	url := "https://" + in.secure[0].Addr().String() + "/chat?x=1"
	wait.NoError(t, "HTTPS", func() error {
		resp, err := e.rt.RoundTrip(request(t, http.MethodOptions, url, testHost))
		if err == nil {
			resp.Body.Close()
		}
		return err
	})
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	return websocket.Dial(ctx, url, &websocket.DialOptions{Host: testHost, HTTPClient: &http.Client{Transport: e}, Subprotocols: []string{"chat"}})
}

// withApp is an ingress with HTTPS and one app.
func withApp(t *testing.T, ca *tlstest.Authority, cfg Config, up string) *running {
	t.Helper()
	k := &keys{}
	k.set(issue(t, ca, "p", 1, testHost))
	cfg.HTTPSAddrs, cfg.Certificates = []string{"127.0.0.1:0"}, k.get
	in := start(t, cfg)
	st := oneApp(up)
	st.Routes = []Route{{ID: "rt-1", Host: testHost, Path: "/", App: "app-1"}}
	in.install(st)
	return in
}

// TestExtendedConnect: a WebSocket by HTTP/2 or HTTP/3 reaches an app that knows HTTP/1.1 only,
// is counted and logged like one of HTTP/1.1, and ends when either side ends it.
func TestExtendedConnect(t *testing.T) {
	eachProtocol(t, func(t *testing.T, ca *tlstest.Authority, rt func() http.RoundTripper, proto string) {
		var log bytes.Buffer
		var mu sync.Mutex
		heads := make(chan *http.Request, 1)
		ended := make(chan error, 1)
		up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodOptions {
				return
			}
			heads <- r
			c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"chat"}})
			if err != nil {
				t.Error(err)
				return
			}
			defer c.CloseNow()
			c.SetReadLimit(1 << 20)
			for {
				kind, b, err := c.Read(context.Background())
				if err == nil && string(b) == "close" {
					err = c.Close(4001, "asked to")
				} else if err == nil {
					err = c.Write(context.Background(), kind, append([]byte("echo "), b...))
				}
				if err != nil || string(b) == "close" {
					ended <- err
					return
				}
			}
		})
		in := withApp(t, ca, Config{AccessLog: writer(func(b []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return log.Write(b) })}, up.URL)
		e := &extended{rt: rt()}
		for i, end := range []string{"client", "app", "broken"} {
			c, resp, err := dialExtended(t, in, e)
			if err != nil {
				t.Fatal(err)
			}
			defer c.CloseNow()
			c.SetReadLimit(1 << 20)
			if e.status != 200 || c.Subprotocol() != "chat" || resp.Header.Get("X-Request-Id") == "" {
				t.Errorf("%d %q %v", e.status, c.Subprotocol(), resp.Header)
			}
			head := wait.Receive(t, "the request at the app", heads)
			if head.Method != "GET" || head.RequestURI != "/chat?x=1" || head.Host != testHost || head.Proto != "HTTP/1.1" || head.Header.Get("X-Forwarded-Proto") != "https" || head.ContentLength != 0 {
				t.Errorf("the app got %s %s %s %v", head.Method, head.RequestURI, head.Proto, head.Header)
			}
			ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
			defer cancel()
			for n := range 4 {
				msg := strings.Repeat(fmt.Sprint(n), 1+n*20_000)
				if err := c.Write(ctx, websocket.MessageText, []byte(msg)); err != nil {
					t.Fatal(err)
				}
				if _, b, err := c.Read(ctx); err != nil || string(b) != "echo "+msg {
					t.Fatalf("message %d: %d bytes, %v", n, len(b), err)
				}
			}
			if n := in.status().InFlight; n != 1 {
				t.Errorf("%d in flight", n)
			}
			switch end {
			case "client":
				if err := c.Close(4000, "enough"); err != nil {
					t.Error(err)
				}
				if err := wait.Receive(t, "the end at the app", ended); websocket.CloseStatus(err) != 4000 {
					t.Errorf("the app: %v", err)
				}
			case "app":
				_ = c.Write(ctx, websocket.MessageText, []byte("close"))
				if _, _, err := c.Read(ctx); websocket.CloseStatus(err) != 4001 {
					t.Errorf("the client: %v", err)
				}
				c.CloseNow()
				<-ended
			case "broken": // without a word
				c.CloseNow()
				if err := wait.Receive(t, "the end at the app", ended); err == nil {
					t.Error("the app has no error")
				}
			}
			wait.For(t, "it is counted no longer", func() bool { return in.status().InFlight == 0 })
			wait.For(t, "the line in the access log", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return strings.Count(log.String(), `"upgrade":"websocket"`) == i+1
			})
		}
		mu.Lock()
		defer mu.Unlock()
		if !strings.Contains(log.String(), `"method":"GET","path":"/chat","status":200`) || !strings.Contains(log.String(), `"proto":"`+proto+`"`) {
			t.Errorf("access log: %s", log.String())
		}
	})
}

// TestExtendedConnectRefused: what the app answers instead of an upgrade reaches the client,
// unless the client would take it for an open WebSocket; other protocols are not known.
func TestExtendedConnectRefused(t *testing.T) {
	eachProtocol(t, func(t *testing.T, ca *tlstest.Authority, rt func() http.RoundTripper, _ string) {
		var answer http.HandlerFunc = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not you", http.StatusForbidden) }
		var mu sync.Mutex
		up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if r.Method != http.MethodOptions {
				answer(w, r)
			}
		})
		in := withApp(t, ca, Config{Logger: quiet}, up.URL)
		e := &extended{rt: rt()}
		refused := func(want int, body string, h http.HandlerFunc) {
			t.Helper()
			mu.Lock()
			if h != nil {
				answer = h
			}
			mu.Unlock()
			c, resp, err := dialExtended(t, in, e)
			if err == nil {
				c.CloseNow()
				t.Fatal("the WebSocket is open")
			}
			if resp == nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != want || !strings.Contains(string(b), body) {
				t.Errorf("%s %s", resp.Status, b)
			}
		}
		refused(403, "not you", nil)
		refused(502, "", says("hello"))
		refused(502, "", func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: wrong\r\n\r\n")
				c.Close()
			}
		})
		e.protocol = "connect-udp"
		refused(501, "websocket", nil)
		wait.For(t, "none is counted", func() bool { return in.status().InFlight == 0 })
	})
}

// TestExtendedConnectAppDies: the client of an app that breaks the connection sees that, and its
// other streams go on.
func TestExtendedConnectAppDies(t *testing.T) {
	eachProtocol(t, func(t *testing.T, ca *tlstest.Authority, rt func() http.RoundTripper, _ string) {
		up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodOptions {
				return
			}
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			s := &stream{}
			sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + websocketGUID))
			s.accept = base64.StdEncoding.EncodeToString(sum[:])
			fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n", s.accept)
			_, _ = io.ReadFull(c, make([]byte, 8)) // a message of two bytes
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
		})
		in := withApp(t, ca, Config{}, up.URL)
		e := &extended{rt: rt()}
		c, _, err := dialExtended(t, in, e)
		if err != nil {
			t.Fatal(err)
		}
		defer c.CloseNow()
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		defer cancel()
		if err := c.Write(ctx, websocket.MessageText, []byte("hi")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.Read(ctx); err == nil || errors.Is(err, io.EOF) || ctx.Err() != nil {
			t.Errorf("the client reads %v, want a reset", err)
		}
		wait.For(t, "it is counted no longer", func() bool { return in.status().InFlight == 0 })
		resp, err := e.rt.RoundTrip(request(t, http.MethodOptions, "https://"+in.secure[0].Addr().String(), testHost))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	})
}

// TestExtendedConnectTakeover: a WebSocket of the process before works while that drains, is
// counted by its successor, and ends at the end of the drain time at the latest.
func TestExtendedConnectTakeover(t *testing.T) {
	eachProtocol(t, func(t *testing.T, ca *tlstest.Authority, rt func() http.RoundTripper, _ string) {
		up := upstream(t, echoing(t))
		s := newSuccession(t, ca, up.URL)
		echo := func(c *websocket.Conn) error {
			ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
			defer cancel()
			if err := c.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
				return err
			}
			_, b, err := c.Read(ctx)
			if err == nil && string(b) != "hello" {
				err = fmt.Errorf("echo %q", b)
			}
			return err
		}
		first := rt()
		c, _, err := dialExtended(t, s.now, &extended{rt: first})
		if err != nil {
			t.Fatal(err)
		}
		defer c.CloseNow()
		old, ended := s.takeOver()
		wait.For(t, "the first accepts no connections", func() bool {
			return old.draining.Load() && old.http3.accept.Err() != nil
		})
		other, _, err := dialExtended(t, s.now, &extended{rt: rt()})
		if err != nil {
			t.Fatal(err)
		}
		defer other.CloseNow()
		for range 10 {
			if err := errors.Join(echo(c), echo(other)); err != nil {
				t.Fatal(err)
			}
		}
		var n int64
		wait.For(t, "the successor counts both", func() bool {
			n = 0
			for _, one := range s.now.inflight("") {
				n += one
			}
			return n == 2
		})
		c.Close(websocket.StatusNormalClosure, "")
		wait.For(t, "one is counted", func() bool { return s.now.status().InFlight == 1 })
		first.(interface{ CloseIdleConnections() }).CloseIdleConnections()
		wait.Receive(t, "the first ends", ended)
		if err := echo(other); err != nil {
			t.Error(err)
		}
	})
}

// TestExtendedConnectStop: an ingress that stops ends WebSockets when the drain time is over.
func TestExtendedConnectStop(t *testing.T) {
	eachProtocol(t, func(t *testing.T, ca *tlstest.Authority, rt func() http.RoundTripper, _ string) {
		up := upstream(t, echoing(t))
		in := withApp(t, ca, Config{DrainTimeout: -1, Logger: quiet}, up.URL)
		c, _, err := dialExtended(t, in, &extended{rt: rt()})
		if err != nil {
			t.Fatal(err)
		}
		defer c.CloseNow()
		ended := make(chan struct{})
		go func() { defer close(ended); in.stop() }()
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		defer cancel()
		if _, _, err := c.Read(ctx); err == nil || ctx.Err() != nil {
			t.Errorf("the client reads %v", err)
		}
		wait.Receive(t, "the ingress ends", ended)
	})
}
