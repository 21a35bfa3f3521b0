package ingress

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/tlstest"
	"miren.dev/runtime/testsupport/wait"
)

// keys is a source of certificates that a test changes.
type keys struct {
	list atomic.Pointer[[]Certificate]
	away atomic.Bool
}

func (k *keys) set(list ...Certificate) { k.list.Store(&list) }

func (k *keys) get(context.Context) ([]Certificate, error) {
	if k.away.Load() {
		return nil, errors.New("the server is away")
	}
	return *k.list.Load(), nil
}

func issue(t testing.TB, ca *tlstest.Authority, project string, created int, names ...string) Certificate {
	t.Helper()
	chain, key := ca.Issue(t, names...)
	return Certificate{ID: schema.ID(fmt.Sprintf("cert-%s-%d", project, created)), Project: schema.ID(project), Created: schema.Revision(created), Chain: chain, Key: key}
}

// secure is an ingress with HTTPS in front of one app that says what it got.
type secure struct {
	*running
	keys *keys
	ca   *tlstest.Authority
}

func startSecure(t *testing.T, cfg Config, list ...Certificate) *secure {
	t.Helper()
	s := &secure{keys: &keys{}, ca: tlstest.New(t)}
	s.keys.set(list...)
	cfg.HTTPSAddrs, cfg.Certificates = []string{"127.0.0.1:0"}, s.keys.get
	if cfg.CertificateFile == "" {
		cfg.CertificateFile = filepath.Join(t.TempDir(), "certificates")
	}
	s.running = start(t, cfg)
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			c, brw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			fmt.Fprint(brw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			_ = brw.Flush()
			_, _ = io.Copy(c, brw)
			return
		}
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s", r.Header.Get("X-Forwarded-Proto"), r.Host, r.URL, b)
	})
	st := oneApp(up.URL)
	st.Routes = []Route{{ID: "rt-1", Host: "*", Path: "/", App: "app-1"}}
	s.install(st)
	return s
}

// offer makes the certificates those of the source, and waits until name has one.
func (s *secure) offer(t *testing.T, name string, list ...Certificate) {
	t.Helper()
	s.keys.set(list...)
	s.Ingress.keys.refresh()
	wait.For(t, "the certificate of "+name, func() bool { return s.Ingress.keys.find(name) != nil })
}

func (s *secure) address() string { return s.Ingress.secure[0].Addr().String() }

// client trusts the authority of the test and reaches every host at the ingress.
func (s *secure) client(t *testing.T, http2 bool) *http.Client {
	t.Helper()
	c := client(t)
	tr := c.Transport.(*http.Transport)
	tr.ForceAttemptHTTP2, tr.TLSClientConfig = http2, &tls.Config{RootCAs: s.ca.Pool()}
	tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", s.address())
	}
	return c
}

// handshake returns the certificate that a client gets for a name.
func (s *secure) handshake(name string, cfg *tls.Config) (*x509.Certificate, error) {
	cfg.ServerName, cfg.RootCAs = name, s.ca.Pool()
	c, err := tls.Dial("tcp", s.address(), cfg)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0], nil
}

func ask(t testing.TB, c *http.Client, req *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func TestHTTPSServesBothVersionsOfHTTP(t *testing.T) {
	s := startSecure(t, Config{})
	s.offer(t, "shop.example.com", issue(t, s.ca, "p", 1, "shop.example.com"))
	for _, http2 := range []bool{false, true} {
		c := s.client(t, http2)
		req := request(t, http.MethodPost, "https://shop.example.com/a?b=c", "")
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader("body")), 4
		resp, body := ask(t, c, req)
		if resp.StatusCode != 200 || body != "https shop.example.com /a?b=c body" || (resp.ProtoMajor == 2) != http2 {
			t.Errorf("%s %s: %q", resp.Proto, resp.Status, body)
		}
		// A body of unknown length, larger than what is read ahead.
		req = request(t, http.MethodPost, "https://shop.example.com/", "")
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", 1<<20))), -1
		if resp, body := ask(t, c, req); resp.StatusCode != 200 || len(body) < 1<<20 {
			t.Errorf("%s: a large body: %s, %d bytes", resp.Proto, resp.Status, len(body))
		}
		if resp, _ := ask(t, c, request(t, http.MethodGet, "https://shop.example.com/", "other.example.com")); resp.StatusCode != http.StatusMisdirectedRequest {
			t.Errorf("%s: a host that the certificate is not for: %s", resp.Proto, resp.Status)
		}
	}
}

func TestCertificateIsChosenByName(t *testing.T) {
	s := startSecure(t, Config{})
	s.offer(t, "a.example.com",
		issue(t, s.ca, "p", 1, "a.example.com"), issue(t, s.ca, "p", 2, "*.example.com", "example.org"),
		issue(t, s.ca, "other", 3, "a.example.com", "mine.example.net"))
	for name, want := range map[string]string{"a.example.com": "a.example.com", "A.Example.com": "a.example.com", "b.example.com": "*.example.com", "example.org": "*.example.com",
		"mine.example.net": "a.example.com"} {
		leaf, err := s.handshake(name, &tls.Config{})
		if err != nil || leaf.DNSNames[0] != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if leaf, _ := s.handshake("a.example.com", &tls.Config{}); leaf == nil || len(leaf.DNSNames) != 1 {
		t.Error("the younger certificate of another project serves the name of the older one")
	}
	for _, name := range []string{"example.com", "a.b.example.com", "unknown.example.org"} {
		if _, err := s.handshake(name, &tls.Config{}); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.handshake("a.example.com", &tls.Config{MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 is accepted")
	}
}

func TestHostWithCertificateIsRedirectedToHTTPS(t *testing.T) {
	s := startSecure(t, Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	s.offer(t, "shop.example.com", issue(t, s.ca, "p", 1, "shop.example.com"))
	_, port, _ := net.SplitHostPort(s.address())
	c := client(t)
	for _, host := range []string{"shop.example.com", "Shop.Example.com:8080"} {
		resp, _ := ask(t, c, request(t, http.MethodPost, s.url+"//a/?q=1", host))
		if resp.StatusCode != http.StatusPermanentRedirect || resp.Header.Get("Location") != "https://shop.example.com:"+port+"//a/?q=1" {
			t.Errorf("%s: %s to %q", host, resp.Status, resp.Header.Get("Location"))
		}
	}
	if resp, _ := ask(t, c, request(t, http.MethodGet, s.url, "other.example.com")); resp.StatusCode != 200 {
		t.Errorf("a host without a certificate: %s", resp.Status)
	}
	if resp, _ := ask(t, c, request(t, http.MethodGet, s.url+acmePath+"x", "shop.example.com")); resp.StatusCode != 200 {
		t.Errorf("a challenge: %s", resp.Status)
	}
	req := request(t, http.MethodGet, s.url, "shop.example.com")
	req.Header.Set("X-Forwarded-Proto", "https")
	if resp, body := ask(t, c, req); resp.StatusCode != 200 || !strings.HasPrefix(body, "https ") {
		t.Errorf("from a proxy with TLS: %s %q", resp.Status, body)
	}
}

func TestRedirectCanBeOff(t *testing.T) {
	s := startSecure(t, Config{NoRedirect: true})
	s.offer(t, "shop.example.com", issue(t, s.ca, "p", 1, "shop.example.com"))
	if resp, body := ask(t, client(t), request(t, http.MethodGet, s.url, "shop.example.com")); resp.StatusCode != 200 || !strings.HasPrefix(body, "http ") {
		t.Errorf("%s %q", resp.Status, body)
	}
}

func TestNewCertificateLeavesConnectionsOpen(t *testing.T) {
	s := startSecure(t, Config{})
	s.offer(t, "shop.example.com", issue(t, s.ca, "p", 1, "shop.example.com"))
	c, err := tls.Dial("tcp", s.address(), &tls.Config{ServerName: "shop.example.com", RootCAs: s.ca.Pool()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// A WebSocket, which outlives the change.
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: shop.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v %v", resp, err)
	}
	old := s.Ingress.keys.find("shop.example.com")
	s.offer(t, "new.example.com", issue(t, s.ca, "p", 1, "shop.example.com", "new.example.com"))
	if leaf, err := s.handshake("shop.example.com", &tls.Config{}); err != nil || leaf.Equal(old.Leaf) {
		t.Errorf("a new connection has the old certificate: %v", err)
	}
	fmt.Fprint(c, "echo\n")
	if line, err := br.ReadString('\n'); err != nil || line != "echo\n" {
		t.Errorf("%q %v", line, err)
	}
}

func TestIngressServesSavedCertificates(t *testing.T) {
	file := filepath.Join(t.TempDir(), "certificates")
	s := startSecure(t, Config{CertificateFile: file})
	s.offer(t, "shop.example.com", issue(t, s.ca, "p", 1, "shop.example.com"))
	s.stop()
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", st, err)
	}
	next := &secure{keys: &keys{}, ca: s.ca}
	next.keys.away.Store(true)
	next.running = start(t, Config{HTTPSAddrs: []string{"127.0.0.1:0"}, Certificates: next.keys.get, CertificateFile: file, Logger: quiet})
	if _, err := next.handshake("shop.example.com", &tls.Config{}); err != nil {
		t.Error(err)
	}
}
