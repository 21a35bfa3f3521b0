package ingress

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	admin "miren.dev/runtime/api/ingress"
	"miren.dev/runtime/domain/routes"
	"miren.dev/runtime/testsupport/tlstest"
	"miren.dev/runtime/testsupport/wait"
)

// lineEcho plays a sandbox that answers each line.
func lineEcho(t *testing.T, proxied bool) net.Listener {
	t.Helper()
	return accepting(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		from := "-"
		if proxied {
			h, err := proxyproto.Read(r)
			if err != nil {
				return
			}
			from = h.SourceAddr.String()
		}
		for s := bufio.NewScanner(r); s.Scan(); {
			fmt.Fprintf(c, "%s %s\n", s.Text(), from)
		}
		fmt.Fprint(c, "end\n")
	})
}

// tcpFront is an ingress with a route of a port.
func tcpConfig(t *testing.T, up net.Listener, r TCPRoute) (Config, string) {
	t.Helper()

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	_, text, _ := net.SplitHostPort(addr)
	port, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	st := oneApp("http://" + up.Addr().String())
	r.ID, r.Port, r.App, r.Service = "tr-1", port, "app-1", "web"
	if r.Idle == 0 {
		r.Idle = time.Hour
	}
	st.TCP = []TCPRoute{r}
	cfg := Config{TableFile: filepath.Join(t.TempDir(), "table"), TCPPorts: routes.Ports{{port, port}}, AdminSocket: filepath.Join(t.TempDir(), "1.sock")}
	if err := saveState(cfg.TableFile, st); err != nil {
		t.Fatal(err)
	}
	return cfg, addr
}

func dialTCP(t *testing.T, addr string) (c *net.TCPConn, say func(string) string) {
	t.Helper()
	wait.NoError(t, "the port is open", func() error {
		nc, err := net.Dial("tcp", addr)
		if err == nil {
			c = nc.(*net.TCPConn)
		}
		return err
	})
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(wait.Limit))
	r := bufio.NewReader(c)
	return c, func(s string) string {
		if s != "" {
			if _, err := fmt.Fprintln(c, s); err != nil {
				return err.Error()
			}
		}
		line, err := r.ReadString('\n')
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(line)
	}
}

func TestTCPRoute(t *testing.T) {
	up := lineEcho(t, true)
	cfg, addr := tcpConfig(t, up, TCPRoute{Proxy: true, Allow: "127.0.0.0/8"})
	in := start(t, cfg)
	c, say := dialTCP(t, addr)
	for _, s := range []string{"one", "two"} {
		if got := say(s); got != s+" "+c.LocalAddr().String() {
			t.Errorf("%q", got)
		}
	}
	if st, err := (admin.Client{Socket: cfg.AdminSocket}).Status(t.Context()); err != nil || st.InFlight != 1 {
		t.Errorf("%d connections under way: %v", st.InFlight, err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got := say(""); got != "end" {
		t.Errorf("after the half-close: %q", got)
	}
	wait.For(t, "the connection is not counted", func() bool { return in.conns.Load() == 0 })

	// Without the route the port is closed.
	in.install(oneApp("http://" + up.Addr().String()))
	wait.For(t, "the port is closed", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
}

// TestTCPRouteEndsTLS: the service gets what was encrypted, also a half-close. The ingress
// refuses names without a certificate, and those of other projects.
func TestTCPRouteEndsTLS(t *testing.T) {
	up := lineEcho(t, true)
	cfg, addr := tcpConfig(t, up, TCPRoute{Project: "shop", Proxy: true, TLS: true})
	ca, k := tlstest.New(t), &keys{}
	k.set(issue(t, ca, "shop", 1, "db.example.com"), issue(t, ca, "theirs", 2, "theirs.example.com"))
	cfg.Certificates = k.get
	in := start(t, cfg)
	wait.For(t, "the ingress has the certificates", func() bool { return in.keys.find("theirs.example.com") != nil })
	raw, _ := dialTCP(t, addr)
	c := tls.Client(raw, &tls.Config{ServerName: "db.example.com", RootCAs: ca.Pool()})
	if _, err := fmt.Fprintln(c, "one"); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	if got, err := r.ReadString('\n'); got != "one "+raw.LocalAddr().String()+"\n" {
		t.Errorf("%q, %v", got, err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := r.ReadString('\n'); got != "end\n" {
		t.Errorf("after the half-close: %q, %v", got, err)
	}
	for _, name := range []string{"theirs.example.com", "other.example.com"} {
		raw, _ := dialTCP(t, addr)
		if err := tls.Client(raw, &tls.Config{ServerName: name, RootCAs: ca.Pool()}).Handshake(); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("%s: %v", name, err)
		}
	}
	plain, say := dialTCP(t, addr)
	if got := say("plain text is refused"); !strings.Contains(got, "EOF") && !strings.Contains(got, "reset") && !strings.HasPrefix(got, "\x15") {
		t.Errorf("%s got %q", plain.LocalAddr(), got)
	}
	wait.For(t, "no connection is counted", func() bool { return in.conns.Load() == 0 })
}

func TestTCPRouteRefuses(t *testing.T) {
	for name, r := range map[string]TCPRoute{"other networks": {Allow: "10.0.0.0/8"}, "a network that cannot be read": {Allow: "?"}, "an idle connection": {Idle: 50 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			cfg, addr := tcpConfig(t, lineEcho(t, false), r)
			start(t, cfg)
			c, _ := dialTCP(t, addr)
			b, err := io.ReadAll(c)
			if ne := net.Error(nil); len(b) > 0 || err != nil && asTimeout(err, &ne) {
				t.Errorf("%q %v", b, err)
			}
		})
	}
	cfg, addr := tcpConfig(t, lineEcho(t, false), TCPRoute{})
	cfg.TCPPorts, cfg.Logger = nil, quiet
	in := start(t, cfg)
	wait.For(t, "the ingress looked at its ports", func() bool { in.tcp.mu.Lock(); defer in.tcp.mu.Unlock(); return true })
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Error("a port that the operator did not give is open")
	}
}

func asTimeout(err error, to *net.Error) bool {
	ne, ok := err.(net.Error)
	*to = ne
	return ok && ne.Timeout()
}

// TestTCPTakeover: an open connection goes on in the old process, and no new one is
// refused.
func TestTCPTakeover(t *testing.T) {
	cfg, addr := tcpConfig(t, lineEcho(t, false), TCPRoute{})
	cfg.DrainTimeout = wait.Limit
	first := start(t, cfg)
	c, say := dialTCP(t, addr)
	if got := say("before"); got != "before -" {
		t.Fatal(got)
	}
	cfg.Addrs, cfg.TakeOver, cfg.AdminSocket = []string{first.addr}, cfg.AdminSocket, filepath.Join(t.TempDir(), "2.sock")
	second := start(t, cfg)
	if err := (admin.Client{Socket: cfg.AdminSocket}).Serve(t.Context()); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); first.stop() }()
	wait.For(t, "the first drains", func() bool { return first.draining.Load() })
	for range 20 {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = nc.SetDeadline(time.Now().Add(wait.Limit))
		fmt.Fprintln(nc, "x")
		if line, err := bufio.NewReader(nc).ReadString('\n'); line != "x -\n" {
			t.Errorf("%q %v", line, err)
		}
		nc.Close()
	}
	if got := say("after"); got != "after -" {
		t.Errorf("%q", got)
	}
	c.Close()
	wait.Receive(t, "the first ends", stopped)
	if second.draining.Load() {
		t.Error("the second drains")
	}
}
