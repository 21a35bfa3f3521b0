package sandbox

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/sandbox"
)

// TestAlive: without a path a process is alive if it accepts connections, whatever protocol it speaks; that its kernel
// does is not enough.
func TestAlive(t *testing.T) {
	listener := func(serve func(net.Conn)) *net.TCPAddr {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		if serve != nil {
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					t.Cleanup(func() { c.Close() })
					go serve(c)
				}
			}()
		}
		return l.Addr().(*net.TCPAddr)
	}
	requests := 0
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		if r.URL.Path != "/live" {
			http.Error(w, "no", http.StatusServiceUnavailable)
		}
	}))
	defer web.Close()
	closed := listener(nil)
	l, _ := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	free := l.Addr().(*net.TCPAddr)
	l.Close()
	for _, tc := range []struct {
		name string
		addr *net.TCPAddr
		path string
		want string // part of the error; "": alive
	}{
		{"HTTP", web.Listener.Addr().(*net.TCPAddr), "", ""},
		{"closes", listener(func(c net.Conn) { _, _ = c.Read(make([]byte, 1)); c.Close() }), "", ""},
		{"resets", listener(func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0); c.Close() }), "", ""},
		{"greets", listener(func(c net.Conn) { _, _ = c.Write([]byte("220 hello\r\n")) }), "", ""},
		{"does not accept", closed, "", "no process accepts them"},
		{"accepts, and does no more", listener(func(net.Conn) {}), "", "no process accepts them"},
		{"does not listen", free, "", "nothing listens on port"},
		{"path", web.Listener.Addr().(*net.TCPAddr), "/live", ""},
		{"path that fails", web.Listener.Addr().(*net.TCPAddr), "/other", "GET /other answered 503"},
		{"path without an answer", closed, "/live", "in time"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			timeout := 10 * time.Second
			if tc.want != "" {
				timeout = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			err := alive(ctx, "127.0.0.1", sandbox.Liveness{Port: int64(tc.addr.Port), Path: tc.path})
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	if requests != 2 { // those of the path
		t.Errorf("the program got %d requests", requests)
	}
}
