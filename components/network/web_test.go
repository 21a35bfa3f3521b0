package network

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/private"
)

// TestHTTPThroughTheProxy: requests pass unchanged, and each for itself.
func TestHTTPThroughTheProxy(t *testing.T) {
	if !private.Run(t) {
		return
	}
	m := start(t)
	newInternet(t)
	m.runs(t)
	a := attachWith(t, m, "a", policy(t, "list", "good.example", ""))
	site := netip.MustParseAddrPort("203.0.113.80:80")
	dial := func() net.Conn {
		t.Helper()
		c, err := dialFrom(t, a.NetNS, site, later)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(later))
		return c
	}
	ask := func(c net.Conn, r *bufio.Reader, request string) (int, string) {
		t.Helper()
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return resp.StatusCode, string(b)
	}

	// Several requests on one connection; the first one for another host ends it.
	c := dial()
	r := bufio.NewReader(c)
	for range 3 {
		if code, body := ask(c, r, "GET / HTTP/1.1\r\nHost: good.example\r\n\r\n"); code != 200 || body != "203.0.113.80:80 for good.example" {
			t.Errorf("%d %s", code, body)
		}
	}
	if code, body := ask(c, r, "GET / HTTP/1.1\r\nHost: other.example\r\n\r\n"); code != http.StatusForbidden || !strings.Contains(body, "does not permit other.example") {
		t.Errorf("another host on the connection: %d %s", code, body)
	}
	for _, request := range []string{
		"GET http://other.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n", // the target counts
		"CONNECT good.example:443 HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: good.example\r\nHost: other.example\r\n\r\n",
		"GET / HTTP/1.0\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"SSH-2.0-x\r\n\r\n",
	} {
		c := dial()
		if code, body := ask(c, bufio.NewReader(c), request); code == 200 {
			t.Errorf("%q: %d %s", request, code, body)
		}
	}

	// Protocols other than HTTP, and TLS without a name.
	for _, first := range [][]byte{bytes.Repeat([]byte("x"), 100), {0x16, 3, 1, 0, 5}, []byte("GET / HTTP/1.1\r\nHost: good.example\r\n\r\n")} {
		c, err := dialFrom(t, a.NetNS, netip.AddrPortFrom(site.Addr(), 443), later)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(first)
		_ = c.(*net.TCPConn).CloseWrite()
		_ = c.SetDeadline(time.Now().Add(later))
		if n, _ := c.Read(make([]byte, 1)); n > 0 {
			t.Errorf("%q at port 443 has an answer", first)
		}
		c.Close()
	}

	// Headers, bodies and upgrades pass as they are.
	c = dial()
	r = bufio.NewReader(c)
	body := strings.Repeat("0123456789", 100_000)
	code, got := ask(c, r, fmt.Sprintf("POST /echo?a=%%zz;b HTTP/1.1\r\nHost: good.example\r\nX-Forwarded-For: me\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	if want := "a=%zz;b me \n" + body; code != 200 || got != want {
		t.Errorf("%d, %d bytes, %.40q", code, len(got), got)
	}
	c = dial()
	r = bufio.NewReader(c)
	if _, err := io.WriteString(c, "GET /upgrade HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", resp, err)
	}
	if err := ping(c, later); err != nil {
		t.Errorf("the upgraded connection: %v", err)
	}
	setPolicy(t, m, "a", policy(t, "list", "two.example", ""))
	if ping(c, soon) == nil {
		t.Error("the upgraded connection goes on after a change of the policy")
	}
}
