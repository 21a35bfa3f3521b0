package ingress

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// through sends a request on a connection that begins with a head, and returns the
// answer.
func through(t *testing.T, addr, head string, cfg *tls.Config, host string) (string, error) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(wait.Limit)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, head); err != nil {
		return "", err
	}
	if cfg != nil {
		c = tls.Client(c, cfg)
	}
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nX-Forwarded-For: 6.6.6.6\r\nConnection: close\r\n\r\n", host)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(resp.Body)
	return fmt.Sprint(resp.StatusCode, " ", string(b)), err
}

func TestProxyProtocol(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("X-Forwarded-For"))
	})
	local := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	s := startSecure(t, Config{ProxyProtocol: true, TrustedProxies: local, NoRedirect: true, Logger: quiet})
	s.offer(t, "shop.example.com", issue(t, s.ca, "p", 1, "shop.example.com"))
	st := oneApp(up.URL)
	st.Routes = []Route{{ID: "rt-1", Host: "*", Path: "/", App: "app-1"}}
	s.install(st)
	v2, err := (&proxyproto.Header{Version: 2, Command: proxyproto.PROXY, TransportProtocol: proxyproto.TCPv6,
		SourceAddr:      &net.TCPAddr{IP: net.ParseIP("2001:db8::7"), Port: 1},
		DestinationAddr: &net.TCPAddr{IP: net.ParseIP("2001:db8::1"), Port: 443}}).Format()
	if err != nil {
		t.Fatal(err)
	}
	v1 := "PROXY TCP4 192.0.2.9 10.0.0.1 4000 80\r\n"
	cfg := &tls.Config{RootCAs: s.ca.Pool(), ServerName: "shop.example.com"}
	for _, tt := range []struct {
		name, addr, head string
		cfg              *tls.Config
		want             string // empty: the connection ends
	}{
		{"version 1", s.addr, v1, nil, "200 192.0.2.9"},
		{"version 2", s.addr, string(v2), nil, "200 2001:db8::7"},
		{"with TLS", s.address(), v1, cfg, "200 192.0.2.9"},
		{"version 2 with TLS", s.address(), string(v2), cfg, "200 2001:db8::7"},
		{"of the proxy itself", s.addr, "PROXY UNKNOWN\r\n", nil, "200 6.6.6.6, 127.0.0.1"},
		{"without", s.addr, "", nil, ""},
		{"malformed", s.addr, "PROXY TCP4 here there 1 2\r\n", nil, ""},
	} {
		got, err := through(t, tt.addr, tt.head, tt.cfg, "shop.example.com")
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s: %q %v, want %q", tt.name, got, err, tt.want)
		}
	}
	// A peer that is no trusted proxy cannot say who it is.
	in := start(t, Config{ProxyProtocol: true, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Logger: quiet})
	in.install(oneApp(up.URL))
	if got, err := through(t, in.addr, "", nil, testHost); got != "200 127.0.0.1" {
		t.Errorf("another peer: %q %v", got, err)
	}
	if got, err := through(t, in.addr, v1, nil, testHost); err == nil && !strings.HasPrefix(got, "400") {
		t.Errorf("another peer with a header: %q %v", got, err)
	}
	if _, err := New(Config{ProxyProtocol: true}); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("without proxies: %v", err)
	}
}

// TestProxyProtocolHoldsNobodyUp has a peer that sends no header not keep others
// from being served, nor the ingress from ending.
func TestProxyProtocolHoldsNobodyUp(t *testing.T) {
	in := start(t, Config{ProxyProtocol: true, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Logger: quiet, DrainTimeout: time.Second, ReadHeaderTimeout: 500 * time.Millisecond})
	in.install(oneApp(upstream(t, says("in")).URL))
	silent, err := net.Dial("tcp", in.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if got, err := through(t, in.addr, "PROXY TCP4 192.0.2.9 10.0.0.1 4000 80\r\n", nil, testHost); got != "200 in" {
		t.Errorf("%q %v", got, err)
	}
	if err := silent.SetReadDeadline(time.Now().Add(wait.Limit)); err != nil {
		t.Fatal(err)
	}
	if _, err := silent.Read(make([]byte, 1)); err == nil {
		t.Error("a silent peer is answered")
	} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Error("a silent peer is kept")
	}
}
