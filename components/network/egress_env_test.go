package network

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/network/resolver"
	"miren.dev/runtime/pkg/egress"
)

// internet is another machine with web servers at some addresses, and a name
// server of this machine. It is for tests in a namespace of their own.
type internet struct {
	place
	asked atomic.Int64      // questions to the name server
	cert  *x509.Certificate // of the TLS servers
}

// zone has the records of the name server.
var zone = map[string][]string{
	"good.example.":       {"203.0.113.80"},
	"example.com.":        {"203.0.113.80"}, // the certificate of the servers is for this name
	"www.good.example.":   {"203.0.113.81"},
	"other.example.":      {"203.0.113.82"},
	"two.example.":        {"203.0.113.80", "203.0.113.83"},
	"private.example.":    {"10.98.0.9"},
	"metadata.example.":   {"169.254.169.254"},
	"machine.example.":    {"198.51.100.1"},
	"neighbour.example.":  {"10.88.0.3"},
	"evil.good.example.":  {"203.0.113.84"},
	"silent.example.":     {},
	"listed-net.example.": {"192.0.2.10"},
}

// webAddresses have servers on the ports 80 (HTTP), 443 (TLS) and 8080 (TCP).
var webAddresses = []string{"203.0.113.80", "203.0.113.81", "203.0.113.82", "203.0.113.83", "203.0.113.84", "192.0.2.10", "192.0.2.66", "10.98.0.9", "169.254.169.254"}

func newInternet(t *testing.T) *internet {
	t.Helper()
	w := &internet{place: quietPlace(t, netip.MustParsePrefix("198.51.100.0/30"))}
	for _, a := range webAddresses {
		w.has(t, netip.MustParseAddr(a))
	}
	for _, a := range webAddresses {
		w.serve(t, w.netns, netip.MustParseAddr(a))
	}
	// And at those of this one, to show that the firewall keeps sandboxes from them.
	w.serve(t, machine, w.gateway)

	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver 127.0.0.1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	resolver.Files = []string{conf}
	c, err := net.ListenPacket("udp4", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 512)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			w.asked.Add(1)
			if m := zoneAnswer(buf[:n]); m != nil {
				_, _ = c.WriteTo(m, from)
			}
		}
	}()
	return w
}

func zoneAnswer(question []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(question) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	addresses, ok := zone[strings.ToLower(q.Name.String())]
	m.Response, m.Additionals = true, nil
	if !ok {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, a := range addresses {
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 60},
			Body:   &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()},
		})
	}
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}

// serve serves HTTP, TLS and plain TCP at an address of a namespace. Each answers
// with its address, HTTP also with the host that was asked for.
func (w *internet) serve(t *testing.T, netns string, a netip.Addr) {
	t.Helper()
	handler := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/echo":
			fmt.Fprintf(rw, "%s %s %s\n", r.URL.RawQuery, r.Header.Get("X-Forwarded-For"), r.Header.Get("User-Agent"))
			_, _ = io.Copy(rw, r.Body)
			return
		case "/authorization":
			fmt.Fprintf(rw, "%x", sha256.Sum256([]byte(r.Header.Get("Authorization"))))
			return
		case "/upgrade":
			rw.Header().Set("Connection", "Upgrade")
			rw.Header().Set("Upgrade", "echo")
			rw.WriteHeader(http.StatusSwitchingProtocols)
			c, buffered, err := http.NewResponseController(rw).Hijack()
			if err == nil {
				_, _ = io.Copy(c, buffered)
				c.Close()
			}
			return
		}
		fmt.Fprintf(rw, "%s for %s", r.Context().Value(http.LocalAddrContextKey).(net.Addr), r.Host)
	})
	plain := &http.Server{Handler: handler}
	go func() { _ = plain.Serve(listenAt(t, netns, netip.AddrPortFrom(a, 80))) }()
	secure := &httptest.Server{Listener: listenAt(t, netns, netip.AddrPortFrom(a, 443)), Config: &http.Server{Handler: handler}}
	secure.StartTLS()
	w.cert = secure.Certificate()
	t.Cleanup(func() { plain.Close(); secure.Close() })
	echo := listenAt(t, netns, netip.AddrPortFrom(a, 8080))
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

// listenAt listens in a namespace.
func listenAt(t *testing.T, netns string, at netip.AddrPort) net.Listener {
	t.Helper()
	var l net.Listener
	err := inside(t, netns, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "listener")
		defer f.Close()
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}); err != nil {
			return err
		}
		if err := unix.Listen(fd, 128); err != nil {
			return err
		}
		l, err = net.FileListener(f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// dialFrom connects from a namespace.
func dialFrom(t *testing.T, netns string, to netip.AddrPort, timeout time.Duration) (net.Conn, error) {
	t.Helper()
	var c net.Conn
	err := inside(t, netns, func() error {
		fd, err := connect(to, timeout)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "connection")
		defer f.Close()
		c, err = net.FileConn(f)
		return err
	})
	return c, err
}

// fetch asks a web server at an address for a host, by HTTP or TLS, and returns
// nil if that server answers for that host.
func fetch(t *testing.T, netns, host string, to netip.AddrPort, timeout time.Duration) error {
	t.Helper()
	tr := &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return dialFrom(t, netns, to, timeout) },
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := dialFrom(t, netns, to, timeout)
			if err != nil {
				return nil, err
			}
			// The certificate is for no name of the tests.
			s := tls.Client(c, &tls.Config{ServerName: host, InsecureSkipVerify: true})
			return s, s.HandshakeContext(ctx)
		},
	}
	defer tr.CloseIdleConnections()
	scheme := "http"
	if to.Port() == 443 {
		scheme = "https"
	}
	resp, err := (&http.Client{Transport: tr, Timeout: timeout}).Get(scheme + "://" + host + "/")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if want := fmt.Sprintf("%s for %s", to, host); err == nil && (resp.StatusCode != http.StatusOK || string(body) != want) {
		err = fmt.Errorf("%s: %s, want %s", resp.Status, body, want)
	}
	return err
}

// echo reports whether the TCP service at an address answers.
func echo(t *testing.T, netns string, to netip.AddrPort, timeout time.Duration) error {
	t.Helper()
	c, err := dialFrom(t, netns, to, timeout)
	if err != nil {
		return err
	}
	defer c.Close()
	return ping(c, timeout)
}

// ping has a TCP service answer on an open connection.
func ping(c net.Conn, timeout time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("ping")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 4))
	return err
}

// errNoName: the name server says that there is no such name.
var errNoName = errors.New("no such name")

// resolve asks a name server from a namespace, by UDP.
func resolve(t *testing.T, netns, name string, server netip.AddrPort, typ dnsmessage.Type, timeout time.Duration) (addresses []string, _ error) {
	t.Helper()
	question, err := (&dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name + "."), Type: typ, Class: dnsmessage.ClassINET}},
	}).Pack()
	if err != nil {
		t.Fatal(err)
	}
	err = inside(t, netns, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		tv := unix.NsecToTimeval(timeout.Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return err
		}
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(server.Port()), Addr: server.Addr().As4()}); err != nil {
			return err
		}
		if _, err := unix.Write(fd, question); err != nil {
			return err
		}
		b := make([]byte, 4096)
		var n int
		for err = unix.EINTR; errors.Is(err, unix.EINTR); { // Go's runtime sends signals to threads
			n, err = unix.Read(fd, b)
		}
		if err != nil {
			return err
		}
		var m dnsmessage.Message
		if err := m.Unpack(b[:n]); err != nil {
			return err
		}
		switch m.RCode {
		case dnsmessage.RCodeSuccess:
		case dnsmessage.RCodeNameError:
			return errNoName
		default:
			return fmt.Errorf("the name server answers %s", m.RCode)
		}
		for _, r := range m.Answers {
			if a, ok := r.Body.(*dnsmessage.AResource); ok {
				addresses = append(addresses, netip.AddrFrom4(a.A).String())
			}
		}
		return nil
	})
	return addresses, err
}

func policy(t *testing.T, mode, allow, deny string) egress.Policy {
	t.Helper()
	p, err := egress.Parse(mode, strings.Fields(allow), strings.Fields(deny))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func attachWith(t *testing.T, m *Manager, id string, p egress.Policy) Attachment {
	t.Helper()
	at, err := m.Attach(t.Context(), id, Options{Bridge: true, Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func setPolicy(t *testing.T, m *Manager, id string, p egress.Policy) {
	t.Helper()
	if err := m.SetPolicy(t.Context(), id, p); err != nil {
		t.Fatal(err)
	}
}

func clientTLS(c net.Conn, name string) *tls.Conn {
	return tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true})
}

// runsUntil runs a manager until the returned function is called.
func (m *Manager) runsUntil(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
