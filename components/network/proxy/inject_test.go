package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/private"
	"miren.dev/runtime/testsupport/wait"
)

const secretValue = "s3cr3t-value"

// injector is a proxy with a guest whose requests to example.com get a secret,
// and a server for that name.
type injector struct {
	*Proxy
	t      *testing.T
	server *httptest.Server

	mu    sync.Mutex
	value string // of the secret; "": it was deleted
	host  string // to which it may be sent; "": to all
	asked []*http.Request
}

func rule(t testing.TB, host string) egress.Injection {
	t.Helper()
	r, err := egress.ParseRule(host)
	if err != nil {
		t.Fatal(err)
	}
	return egress.Injection{Host: r, Secret: "proj-1/openai", Header: egress.DefaultHeader, Format: egress.DefaultFormat}
}

func newInjector(t *testing.T, http2 bool) *injector {
	t.Helper()
	x := &injector{t: t, value: secretValue}
	x.server = &httptest.Server{Listener: listenTCP(t, "127.0.0.1:443"), Config: &http.Server{Handler: http.HandlerFunc(x.answer)}, EnableHTTP2: http2}
	x.server.StartTLS() // its certificate is for example.com
	t.Cleanup(x.server.Close)
	dir := t.TempDir()
	roots := filepath.Join(dir, "roots.pem")
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: x.server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	x.Proxy = New(Config{
		Servers: func() []netip.AddrPort { return nil }, Reachable: func(netip.Addr) bool { return true },
		Authority: filepath.Join(dir, "ca.pem"), Roots: roots, Secret: x.secret,
	})
	x.set(egress.Policy{Mode: egress.List, Inject: []egress.Injection{rule(t, "example.com")}})
	served := make(chan error, 1)
	go func() { served <- x.web.serve() }()
	t.Cleanup(func() {
		x.Close()
		x.web.close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return x
}

func listenTCP(t *testing.T, at string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp4", at)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (x *injector) set(p egress.Policy) {
	x.t.Helper()
	if err := p.Validate(); err != nil {
		x.t.Fatal(err)
	}
	x.Set(guestAddress, "sb-1", p)
	// 127.0.0.1, where the server is, is the address of the names.
	known := entry{addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, until: time.Now().Add(time.Hour)}
	for _, name := range []string{"example.com", "www.example.com"} {
		x.remember(guestAddress, name, known)
	}
}

func (x *injector) secret(_ context.Context, reference, host string) (string, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if reference != "proj-1/openai" || x.value == "" {
		return "", errs.New(errs.NotFound, "no secret")
	}
	if x.host != "" && x.host != host {
		return "", errs.New(errs.PermissionDenied, "not for %s", host)
	}
	return x.value, nil
}

func (x *injector) setValue(v string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.value = v
}

func (x *injector) setHost(host string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.host = host
}

// answer is the server: it keeps the request, and answers without its headers.
func (x *injector) answer(rw http.ResponseWriter, r *http.Request) {
	x.mu.Lock()
	x.asked = append(x.asked, r)
	x.mu.Unlock()
	rw.Header().Set("Alt-Svc", `h3=":443"`)
	if r.Header.Get("Upgrade") != "" {
		rw.Header().Set("Connection", "Upgrade")
		rw.Header().Set("Upgrade", "websocket")
		rw.WriteHeader(http.StatusSwitchingProtocols)
		if c, buffered, err := http.NewResponseController(rw).Hijack(); err == nil {
			_, _ = io.Copy(c, buffered)
			c.Close()
		}
		return
	}
	fmt.Fprintf(rw, "%s %s\n", r.Host, r.Proto)
	_, _ = io.Copy(rw, r.Body)
}

func (x *injector) last() *http.Request {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.asked) == 0 {
		return nil
	}
	return x.asked[len(x.asked)-1]
}

// dial returns the guest's end of a connection that was redirected to the proxy, as if to a port.
func (x *injector) dial(port uint16) net.Conn {
	x.t.Helper()
	l := listenTCP(x.t, "127.0.0.1:0")
	defer l.Close()
	guestEnd, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { guestEnd.Close() })
	near, err := l.Accept()
	if err != nil {
		x.t.Fatal(err)
	}
	c := &conn{TCPConn: near.(*net.TCPConn), guest: guestAddress, far: map[*farConn]struct{}{}, done: make(chan struct{})}
	c.to = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	x.Proxy.mu.Lock()
	x.guests[guestAddress].conns[c] = struct{}{}
	x.Proxy.mu.Unlock()
	go func() {
		defer x.forget(c)
		if port == egress.PortHTTPS {
			x.relayTLS(context.Background(), c)
			return
		}
		wc := x.newWebConn(c, "")
		x.web.take(wc, wc)
	}()
	return guestEnd
}

// client returns a client of the guest, which trusts the proxy's authority alone.
func (x *injector) client(http2 bool) *http.Client {
	x.t.Helper()
	certificate, err := x.Certificate()
	if err != nil {
		x.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certificate)
	tr := &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return x.dial(egress.PortHTTPS), nil },
		TLSClientConfig:   &tls.Config{RootCAs: pool},
		ForceAttemptHTTP2: http2,
	}
	x.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 10 * time.Second}
}

// do sends a request and returns status and body.
func (x *injector) do(c *http.Client, r *http.Request) (int, string) {
	x.t.Helper()
	resp, err := c.Do(r)
	if err != nil {
		x.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		x.t.Fatal(err)
	}
	for name, values := range resp.Header {
		if strings.Contains(strings.Join(values, " "), secretValue) || name == "Alt-Svc" {
			x.t.Errorf("the response has %s: %q", name, values)
		}
	}
	if strings.Contains(string(b), secretValue) {
		x.t.Errorf("the body has the secret: %s", b)
	}
	return resp.StatusCode, string(b)
}

func request(t testing.TB, method, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestSecretsAreInjected: the server gets the secret in place of whatever the
// guest sent, by HTTP/1.1 and HTTP/2 on either side.
func TestSecretsAreInjected(t *testing.T) {
	if !private.Run(t) {
		return
	}
	for _, of := range []struct{ guest, server bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		t.Run(fmt.Sprintf("HTTP2 of guest %v, of server %v", of.guest, of.server), func(t *testing.T) {
			x := newInjector(t, of.server)
			c := x.client(of.guest)
			r := request(t, http.MethodGet, "https://example.com/v1?q=1")
			r.Header.Set("Authorization", "Bearer placeholder")
			status, body := x.do(c, r)
			if want := map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[of.server]; status != 200 || body != "example.com "+want+"\n" {
				t.Errorf("%d %q", status, body)
			}
			if got := x.last().Header["Authorization"]; !slices.Equal(got, []string{"Bearer " + secretValue}) {
				t.Errorf("the server got %q", got)
			}
			var group sync.WaitGroup
			for range 20 { // at a time, on one connection with HTTP/2
				group.Go(func() {
					resp, err := c.Do(request(t, http.MethodGet, "https://example.com/"))
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				})
			}
			group.Wait()
			for _, r := range x.asked {
				if r.Header.Get("Authorization") != "Bearer "+secretValue {
					t.Errorf("a request has %q", r.Header["Authorization"])
				}
			}
			// A header that is named in Connection is not passed on, but the proxy's is.
			r = request(t, http.MethodGet, "https://example.com/")
			if !of.guest {
				r.Header.Set("Connection", "authorization")
			}
			x.do(c, r)
			if got := x.last().Header.Get("Authorization"); got != "Bearer "+secretValue {
				t.Errorf("with Connection: authorization the server got %q", got)
			}
			for _, r := range x.Recent(guestAddress) {
				if r.Protocol != "https" || r.Secret != "openai" || !r.Allowed || strings.Contains(fmt.Sprintf("%+v", r), secretValue) {
					t.Errorf("record %+v", r)
				}
			}
		})
	}
}

// TestSecretsGoToTheirHostOnly: neither another Host, nor a server that cannot
// prove the name, nor plain HTTP, nor TRACE gets or shows the secret.
func TestSecretsGoToTheirHostOnly(t *testing.T) {
	if !private.Run(t) {
		return
	}
	x := newInjector(t, false)
	c := x.client(false)
	fronted := request(t, http.MethodGet, "https://example.com/")
	fronted.Host = "evil.example"
	if status, body := x.do(c, fronted); status != http.StatusMisdirectedRequest || !strings.Contains(body, "evil.example") {
		t.Errorf("another Host: %d %s", status, body)
	}
	fronted = request(t, http.MethodGet, "https://example.com/")
	fronted.URL.Opaque = "https://evil.example/" // the absolute form of the target, which counts
	if status, _ := x.do(c, fronted); status != http.StatusMisdirectedRequest {
		t.Errorf("another target: %d", status)
	}
	if status, _ := x.do(c, request(t, http.MethodTrace, "https://example.com/")); status != http.StatusMethodNotAllowed {
		t.Errorf("TRACE: %d", status)
	}
	if n := len(x.asked); n != 0 {
		t.Fatalf("the server got %d requests: %v", n, x.last())
	}

	// The certificate of the server is not for this name.
	x.set(egress.Policy{Mode: egress.All, Inject: []egress.Injection{rule(t, "other.test")}})
	x.remember(guestAddress, "other.test", entry{addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
	if status, body := x.do(c, request(t, http.MethodGet, "https://other.test/")); status != http.StatusBadGateway || !strings.Contains(body, "other.test") {
		t.Errorf("a server that is not the host: %d %s", status, body)
	}
	// The address is not one of the name, although the policy permits all.
	x.set(egress.Policy{Mode: egress.All, Inject: []egress.Injection{rule(t, "third.test")}})
	if _, err := c.Do(request(t, http.MethodGet, "https://third.test/")); err == nil {
		t.Error("a connection to an address that the name does not have")
	}
	if n := len(x.asked); n != 0 {
		t.Fatalf("the server got %d requests", n)
	}
}

// TestPlainHTTPNeedsARuleForIt: without that the host is permitted at port 443 only.
func TestPlainHTTPNeedsARuleForIt(t *testing.T) {
	if !private.Run(t) {
		return
	}
	x := newInjector(t, false)
	plain := &httptest.Server{Listener: listenTCP(t, "127.0.0.1:80"), Config: &http.Server{Handler: http.HandlerFunc(x.answer)}}
	plain.Start()
	t.Cleanup(plain.Close)
	ask := func() (int, string) {
		t.Helper()
		c := x.dial(egress.PortHTTP)
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	if status, body := ask(); status != http.StatusForbidden || x.last() != nil {
		t.Errorf("by a list: %d %s", status, body)
	}
	secure := rule(t, "example.com")
	x.set(egress.Policy{Mode: egress.All, Inject: []egress.Injection{secure}})
	if status, _ := ask(); status != 200 || x.last().Header.Get("Authorization") != "" {
		t.Errorf("by all: %d, %q", status, x.last().Header["Authorization"])
	}
	secure.Plain = true
	x.set(egress.Policy{Mode: egress.List, Inject: []egress.Injection{secure}})
	if status, _ := ask(); status != 200 || x.last().Header.Get("Authorization") != "Bearer "+secretValue {
		t.Errorf("by a rule for plain HTTP: %d, %q", status, x.last().Header["Authorization"])
	}
}

// TestInjectionChanges: a secret that is replaced, deleted or no longer injected
// counts for the next request, on a connection that is open too.
func TestInjectionChanges(t *testing.T) {
	if !private.Run(t) {
		return
	}
	x := newInjector(t, true)
	c := x.client(true)
	x.do(c, request(t, http.MethodGet, "https://example.com/"))
	x.setValue("another")
	x.do(c, request(t, http.MethodGet, "https://example.com/"))
	if got := x.last().Header.Get("Authorization"); got != "Bearer another" {
		t.Errorf("after a change of the secret the server got %q", got)
	}
	before := len(x.asked)
	for _, v := range []string{"", "two\nlines"} {
		x.setValue(v)
		want := map[bool]int{true: http.StatusForbidden, false: http.StatusBadGateway}[v == ""]
		if status, body := x.do(c, request(t, http.MethodGet, "https://example.com/")); status != want || !strings.Contains(body, "openai") || strings.Contains(body, "lines") {
			t.Errorf("with the secret %q: %d %s", v, status, body)
		}
	}
	x.setValue(secretValue)
	x.setHost("other.example")
	if status, body := x.do(c, request(t, http.MethodGet, "https://example.com/")); status != http.StatusForbidden || !strings.Contains(body, "openai") {
		t.Errorf("with a secret for another host: %d %s", status, body)
	}
	x.setHost("")
	www := rule(t, "*.example.com")
	www.Header, www.Format = "X-Api-Key", "{}"
	x.set(egress.Policy{Mode: egress.List, Inject: []egress.Injection{www}})
	if _, err := c.Do(request(t, http.MethodGet, "https://example.com/")); err == nil || len(x.asked) != before {
		t.Errorf("a host whose rule was removed: %v, %d requests", err, len(x.asked)-before)
	}
	if status, _ := x.do(c, request(t, http.MethodGet, "https://www.example.com/")); status != http.StatusBadGateway { // its certificate is for example.com and *.example.com
		if got := x.last().Header.Get("X-Api-Key"); status != 200 || got != secretValue || x.last().Header.Get("Authorization") != "" {
			t.Errorf("%d, X-Api-Key: %q", status, got)
		}
	}
}

// TestUpgradesGetTheSecret: a websocket passes, whatever the server speaks otherwise.
func TestUpgradesGetTheSecret(t *testing.T) {
	if !private.Run(t) {
		return
	}
	for _, http2 := range []bool{false, true} {
		x := newInjector(t, http2)
		r := request(t, http.MethodGet, "https://example.com/")
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "websocket")
		resp, err := x.client(false).Transport.RoundTrip(r)
		if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%+v, %v", resp, err)
		}
		c := resp.Body.(io.ReadWriteCloser)
		if _, err := io.WriteString(c, "ping"); err != nil {
			t.Error(err)
		}
		b := make([]byte, 4)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "ping" {
			t.Errorf("%q, %v", b, err)
		}
		c.Close()
		x.server.Close()
		if got := x.last().Header.Get("Authorization"); got != "Bearer "+secretValue {
			t.Errorf("the server got %q", got)
		}
	}
}

// TestGuestWithoutTheAuthority: a program with a list of authorities of its own
// is refused, and the log says why.
func TestGuestWithoutTheAuthority(t *testing.T) {
	if !private.Run(t) {
		return
	}
	x := newInjector(t, false)
	tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return x.dial(egress.PortHTTPS), nil }}
	tr.TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool()}
	if _, err := (&http.Client{Transport: tr}).Do(request(t, http.MethodGet, "https://example.com/")); err == nil {
		t.Fatal("no error")
	}
	wait.For(t, "a record", func() bool { return len(x.Recent(guestAddress)) > 0 })
	if r := x.Recent(guestAddress); len(r) != 1 || !strings.Contains(r[0].Reason, "TLS with the sandbox") {
		t.Errorf("%+v", r)
	}
}

// TestAuthorityIsKept: another process has the same one, from a file that only its user reads.
func TestAuthorityIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ca.pem")
	one, two := &authority{path: path}, &authority{path: path}
	first, err := one.certificate()
	if err != nil {
		t.Fatal(err)
	}
	if second, err := two.certificate(); err != nil || string(second) != string(first) {
		t.Errorf("%s, %v", second, err)
	}
	if strings.Contains(string(first), "PRIVATE KEY") {
		t.Error("the certificate has the key")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for i := range maxLeaves + 10 {
		if _, err := one.leaf(fmt.Sprintf("n%d.example.com", i), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(one.leaves); n > maxLeaves {
		t.Errorf("%d certificates are kept", n)
	}
	// Shortly before its end it is replaced.
	if err := two.load(time.Now().Add(authorityValid - leafValid)); err != nil {
		t.Fatal(err)
	}
	if later, err := two.certificate(); err != nil || string(later) == string(first) {
		t.Errorf("an authority that expires is kept: %v", err)
	}
	if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (&authority{path: path}).certificate(); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("a damaged file: %v", err)
	}
}
