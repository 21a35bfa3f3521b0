package ingress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/tlstest"
	"miren.dev/runtime/testsupport/wait"
)

// tlsEcho plays a sandbox that ends TLS, and answers each line with its name. With postgres it
// expects a client's request for TLS first.
func tlsEcho(t *testing.T, ca *tlstest.Authority, name string, postgres bool) net.Listener {
	t.Helper()
	chain, key := ca.Issue(t, name)
	pair, err := tls.X509KeyPair([]byte(chain), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return accepting(t, func(c net.Conn) {
		if postgres {
			var b [8]byte
			if _, err := io.ReadFull(c, b[:]); err != nil || !bytes.Equal(b[:], pgAsks(pgTLS)) {
				return
			}
			fmt.Fprint(c, "S")
		}
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair}})
		for lines := bufio.NewScanner(s); lines.Scan(); {
			fmt.Fprintf(s, "%s at %s\n", lines.Text(), name)
		}
	})
}

func pgAsks(code uint32) []byte {
	return []byte{0, 0, 0, 8, byte(code >> 24), byte(code >> 16), byte(code >> 8), byte(code)}
}

// TestTCPByName: several services have one port, told apart by the server name of TLS, which the
// ingress ends or passes on, also as PostgreSQL asks for it.
func TestTCPByName(t *testing.T) {
	ca := tlstest.New(t)
	plain, own, pg := lineEcho(t, false), tlsEcho(t, ca, "own.example.com", false), tlsEcho(t, ca, "a.pg.example.com", true)
	cfg, addr := tcpConfig(t, plain, TCPRoute{})
	var st State
	if err := loadFile(cfg.TableFile, stateMagic, &st); err != nil {
		t.Fatal(err)
	}
	port := st.TCP[0].Port
	for i, l := range []net.Listener{own, pg} {
		id := schema.ID(fmt.Sprintf("app-%d", i+2))
		st.Apps = append(st.Apps, App{ID: id, Name: string(id), Versions: []Share{{Version: id, Weight: 100}}})
		st.Sandboxes = append(st.Sandboxes, Sandbox{ID: "sb-" + id, App: id, Version: id, Service: "web", Address: l.Addr().String()})
	}
	base := TCPRoute{Port: port, Service: "web", Idle: time.Hour, Project: "p"}
	route := func(id, app schema.ID, host string, created schema.Revision, change func(*TCPRoute)) TCPRoute {
		r := base
		r.ID, r.App, r.Host, r.Created = id, app, host, created
		change(&r)
		return r
	}
	ended := func(r *TCPRoute) { r.TLS = true }
	passed := func(r *TCPRoute) { r.Passthrough = true }
	st.TCP = []TCPRoute{
		route("tr-1", "app-1", "db.example.com", 1, ended),
		route("tr-2", "app-2", "own.example.com", 2, passed),
		route("tr-3", "app-3", "*.pg.example.com", 3, passed),
		route("tr-4", "app-2", "closed.example.com", 4, func(r *TCPRoute) { r.Passthrough, r.Allow = true, "10.0.0.0/8" }),
		// They contradict older ones, so they do not count.
		route("tr-5", "app-1", "", 5, func(*TCPRoute) {}),
		route("tr-6", "app-1", "own.example.com", 6, func(r *TCPRoute) { r.TLS, r.Project = true, "other" }),
	}
	slices.Reverse(st.TCP)
	if err := saveState(cfg.TableFile, &st); err != nil {
		t.Fatal(err)
	}
	k := &keys{}
	k.set(issue(t, ca, "p", 1, "db.example.com"))
	cfg.Certificates = k.get
	in := start(t, cfg)
	wait.For(t, "the ingress has the certificate", func() bool { return in.keys.find("db.example.com") != nil })
	for _, tt := range []struct {
		name     string
		requests []uint32
		want     string
	}{
		{"db.example.com", nil, "one -"},
		{"own.example.com", nil, "one at own.example.com"},
		{"db.example.com", []uint32{pgTLS}, "one -"},
		{"db.example.com", []uint32{pgGSS, pgTLS}, "one -"},
		{"a.pg.example.com", []uint32{pgTLS}, "one at a.pg.example.com"},
		{"nothing.example.com", nil, "unrecognized name"},
		{"nothing.example.com", []uint32{pgTLS}, "unrecognized name"},
		{"", nil, "unrecognized name"},
		{"closed.example.com", nil, "EOF"},
	} {
		raw, _ := dialTCP(t, addr)
		for _, code := range tt.requests {
			answer := map[uint32]string{pgTLS: "S", pgGSS: "N"}[code]
			var b [1]byte
			if _, err := raw.Write(pgAsks(code)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(raw, b[:]); err != nil || string(b[:]) != answer {
				t.Errorf("%v: %q %v", tt, b, err)
			}
		}
		c := tls.Client(raw, &tls.Config{ServerName: tt.name, RootCAs: ca.Pool(), InsecureSkipVerify: tt.name == ""})
		got, err := "", c.Handshake()
		if err == nil {
			fmt.Fprintln(c, "one")
			got, err = bufio.NewReader(c).ReadString('\n')
		}
		if err != nil {
			got = err.Error()
		}
		if got = strings.TrimSpace(got); got != tt.want && !(tt.want == "EOF" && strings.Contains(got, "reset")) && !strings.Contains(got, tt.want) {
			t.Errorf("%q %v: %q, not %q", tt.name, tt.requests, got, tt.want)
		}
		raw.Close()
	}
	// What is no TLS, is cut off, or does not come.
	for _, b := range [][]byte{[]byte("GET / HTTP/1.1\r\n\r\n"), pgAsks(80877102), {22, 3, 1, 2, 0, 1, 0, 1, 252}, bytes.Repeat([]byte{22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff}, 4000)} {
		raw, _ := dialTCP(t, addr)
		_, _ = raw.Write(b)
		_ = raw.CloseWrite()
		if got, err := io.ReadAll(raw); err == nil && len(got) > 0 && got[0] != 21 {
			t.Errorf("%q: %q", b[:min(len(b), 20)], got)
		}
	}
	wait.For(t, "no connection is counted", func() bool { return in.conns.Load() == 0 && in.tunnels.count() == 0 })
}

// TestPassthroughWithoutName: a route that passes TLS through, and names no server, admits no
// connection. domain/routes makes none.
func TestPassthroughWithoutName(t *testing.T) {
	cfg, addr := tcpConfig(t, lineEcho(t, false), TCPRoute{Passthrough: true})
	start(t, cfg)
	c, _ := dialTCP(t, addr)
	fmt.Fprintln(c, "hello")
	if b, err := io.ReadAll(c); len(b) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%q, %v", b, err)
	}
}

// TestPsqlByName: psql reaches a real server by the name of a route, whose TLS the ingress or the service ends.
func TestPsqlByName(t *testing.T) {
	need.Tools(t, "psql")
	db, err := pgx.ParseConfig(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	relay := func(c net.Conn) {
		s, err := net.Dial("unix", filepath.Join(db.Host, fmt.Sprintf(".s.PGSQL.%d", db.Port)))
		if err != nil {
			return
		}
		defer s.Close()
		go func() {
			_, _ = io.Copy(s, c)
			s.Close() // ends the other direction
		}()
		_, _ = io.Copy(c, s)
	}
	ca := tlstest.New(t)
	chain, key := ca.Issue(t, "db.example.com")
	pair, err := tls.X509KeyPair([]byte(chain), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	withTLS := func(c net.Conn) {
		var b [8]byte
		if _, err := io.ReadFull(c, b[:]); err == nil && bytes.Equal(b[:], pgAsks(pgTLS)) {
			fmt.Fprint(c, "S")
			relay(tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair}}))
		}
	}
	for name, tt := range map[string]struct {
		serve func(net.Conn)
		route TCPRoute
	}{"tls": {relay, TCPRoute{TLS: true}}, "passthrough": {withTLS, TCPRoute{Passthrough: true}}} {
		t.Run(name, func(t *testing.T) {
			k := &keys{}
			k.set(issue(t, ca, "p", 1, "db.example.com"))
			tt.route.Host, tt.route.Project = "db.example.com", "p"
			cfg, addr := tcpConfig(t, accepting(t, tt.serve), tt.route)
			cfg.Certificates = k.get
			in := start(t, cfg)
			wait.For(t, "the ingress has the certificate", func() bool { return in.keys.find("db.example.com") != nil })
			probe, _ := dialTCP(t, addr)
			probe.Close()
			_, port, _ := net.SplitHostPort(addr)
			where := fmt.Sprintf("host=db.example.com hostaddr=127.0.0.1 port=%s sslmode=require user=%s dbname=%s", port, db.User, db.Database)
			out, err := exec.CommandContext(t.Context(), "psql", "--no-psqlrc", where, "-Atc", "select 6*7").CombinedOutput()
			if err != nil || strings.TrimSpace(string(out)) != "42" {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
