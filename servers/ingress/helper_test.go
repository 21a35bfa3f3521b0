package ingress

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

// quiet discards the log of tests that provoke warnings.
var quiet = slog.New(slog.DiscardHandler)

// accepting accepts connections until the test ends. serve gets each in a goroutine of its own, after
// which it is closed.
func accepting(t *testing.T, serve func(net.Conn)) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	return l
}

// running is an ingress under test.
type running struct {
	*Ingress
	addr string
	url  string
	stop func() // ends the ingress and waits
}

// start runs an ingress on a free port until the test ends.
func start(t testing.TB, cfg Config) *running {
	t.Helper()
	if cfg.Addrs == nil {
		cfg.Addrs = []string{"127.0.0.1:0"}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	in, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- in.Run(ctx) }()
	r := &running{Ingress: in}
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(r.stop)
	deadline, waitCancel := context.WithTimeout(t.Context(), wait.Limit)
	defer waitCancel()
	addrs, err := in.Addrs(deadline)
	if err != nil {
		select {
		case err := <-done:
			done <- nil
			t.Fatalf("Run: %v", err)
		default:
			t.Fatal(err)
		}
	}
	r.addr = addrs[0].String()
	r.url = "http://" + r.addr
	return r
}

// upstream is a real HTTP server that plays a sandbox.
func upstream(t testing.TB, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
}

// oneApp is a state of the app "shop" at version v1 with the given sandboxes.
func oneApp(addrs ...string) *State {
	s := &State{Apps: []App{{ID: "app-1", Name: "shop", Versions: []Share{{Version: "v1", Weight: 100}}}}}
	for i, a := range addrs {
		s.Sandboxes = append(s.Sandboxes, Sandbox{ID: schema.ID(fmt.Sprintf("sb-%d-%s", i, a)), App: "app-1", Version: "v1", Service: "web",
			Address: strings.TrimPrefix(a, "http://")})
	}
	return s
}

// client returns a client with connections of its own that follows no
// redirects.
func client(t testing.TB) *http.Client {
	t.Helper()
	tr := &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: wait.Limit, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func request(t testing.TB, method, url, host string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	return r
}

// closedAddr returns an address on which no process listens, and until the test
// ends only the test can.
func closedAddr(t testing.TB) (addr string, listen func() (net.Listener, error)) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "bound")
	t.Cleanup(func() { f.Close() })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	listen = func() (net.Listener, error) {
		if err := unix.Listen(fd, 128); err != nil {
			return nil, err
		}
		return net.FileListener(f)
	}
	return fmt.Sprintf("127.0.0.1:%d", sa.(*unix.SockaddrInet4).Port), listen
}
