package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"miren.dev/runtime/pkg/egress"
)

var guestAddress = netip.MustParseAddr("10.88.0.5")

func newProxy(t testing.TB, allow string) *Proxy {
	t.Helper()
	policy, err := egress.Parse("list", strings.Fields(allow), nil)
	if err != nil {
		t.Fatal(err)
	}
	p := New(Config{Servers: func() []netip.AddrPort { return nil }, Reachable: func(netip.Addr) bool { return true }})
	p.Set(guestAddress, "a", policy)
	return p
}

func question(t testing.TB, name string) []byte {
	t.Helper()
	b, err := (&dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 3, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}).Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestServerFailure: without a name server of the machine there is an answer, and nothing is remembered.
func TestServerFailure(t *testing.T) {
	p := newProxy(t, "example.com")
	var m dnsmessage.Message
	if err := m.Unpack(p.answer(t.Context(), "udp4", guestAddress, question(t, "example.com."))); err != nil || m.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("%v, %v", m.RCode, err)
	}
	if p.answer(t.Context(), "udp4", netip.MustParseAddr("10.88.0.6"), question(t, "example.com.")) != nil {
		t.Error("an unknown guest gets an answer")
	}
	if p.belongs(t.Context(), guestAddress, "example.com", netip.MustParseAddr("203.0.113.1")) {
		t.Error("an address belongs to a name without answers")
	}
}

// TestQuestionOfAKilledProcess: a process reads a question for a name of a private network, and is killed
// before it answers. The process that holds the socket too answers it.
func TestQuestionOfAKilledProcess(t *testing.T) {
	loopback := netip.MustParseAddr("127.0.0.1")
	socket, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(loopback, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	guest, err := net.DialUDP("udp4", nil, socket.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Close()
	serve := func(internal func(id, name string) (Internal, bool)) (end func()) {
		p := New(Config{Servers: func() []netip.AddrPort { return nil }, Internal: internal})
		p.Set(loopback, "a", egress.Policy{Mode: egress.None})
		f, err := socket.File()
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.FilePacketConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := p.serveUDP(ctx, ctx, c.(*net.UDPConn)); err != nil {
				t.Error(err)
			}
		}()
		return func() { cancel(); c.Close(); <-ended }
	}
	reads, killed := make(chan struct{}), make(chan struct{})
	end := serve(func(string, string) (Internal, bool) {
		close(reads)
		<-killed
		return Internal{Missing: true}, true
	})
	defer func() { close(killed); end() }()
	if _, err := guest.Write(question(t, "worker.shop.internal.")); err != nil {
		t.Fatal(err)
	}
	<-reads
	worker := netip.MustParseAddr("10.88.0.7")
	defer serve(func(string, string) (Internal, bool) { return Internal{Addresses: []netip.Addr{worker}}, true })()
	answer := make([]byte, maxQuestion)
	_ = guest.SetReadDeadline(time.Now().Add(10 * time.Second))
	n, err := guest.Read(answer)
	if err != nil {
		t.Fatalf("the question is lost: %v", err)
	}
	var m dnsmessage.Message
	if err := m.Unpack(answer[:n]); err != nil || len(m.Answers) != 1 || m.Answers[0].Body.(*dnsmessage.AResource).A != worker.As4() {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestMemoryOfAGuest is bounded, whatever it asks for.
func TestMemoryOfAGuest(t *testing.T) {
	p := newProxy(t, "*.example.com")
	for i := range 3 * maxNames {
		known := entry{until: time.Now().Add(time.Minute)}
		for j := range maxAnswers {
			known.addresses = append(known.addresses, netip.AddrFrom4([4]byte{203, 0, byte(i), byte(j)}))
		}
		p.remember(guestAddress, fmt.Sprintf("n%d.example.com", i%(2*maxNames)), known)
		p.remember(guestAddress, "one.example.com", known)
		p.names.keep(fmt.Sprintf("n%d.example.com", i), known)
		p.record(guestAddress, egress.Record{Name: strings.Repeat("\x1b", 300)})
	}
	g := p.guests[guestAddress]
	if len(g.answers) > maxNames || len(g.answers["one.example.com"]) > maxAddresses {
		t.Errorf("%d names, %d addresses of one", len(g.answers), len(g.answers["one.example.com"]))
	}
	recent := p.Recent(guestAddress)
	if len(recent) != maxRecentSize || len(recent[0].Name) > 253 || strings.Contains(recent[0].Name, "\x1b") {
		t.Errorf("%d records, %q", len(recent), recent[0].Name)
	}
	for i := range 2 * maxCached {
		p.names.keep(fmt.Sprint(i), entry{until: time.Now().Add(time.Minute)})
	}
	if n := len(p.names.cache); n > maxCached {
		t.Errorf("%d names in the cache", n)
	}
}

// TestRecordsAreCountedWhenTheyAreTooMany: a slow receiver makes no guest wait.
func TestRecordsAreCountedWhenTheyAreTooMany(t *testing.T) {
	got := make(chan egress.Record)
	p := newProxy(t, "example.com")
	p.log = newAccessLog(func(_ context.Context, r egress.Record) { got <- r })
	for range queued + 10 {
		p.record(guestAddress, egress.Record{Protocol: "dns"})
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); p.log.deliver(ctx) }()
	if r := <-got; r.Missed != 10 {
		t.Errorf("%d missed, want 10", r.Missed)
	}
	if r := <-got; r.Missed != 0 {
		t.Errorf("%d missed after that", r.Missed)
	}
	cancel()
	for open := true; open; {
		select {
		case <-got:
		case <-done:
			open = false
		}
	}
}

// clientHello returns a TLS client's first message.
func clientHello(t testing.TB, name string) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		_ = tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
		client.Close()
	}()
	b := make([]byte, maxHello)
	n, err := server.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}

type byteConn struct {
	net.Conn
	io.Reader
}

func (c byteConn) Read(b []byte) (int, error) { return c.Reader.Read(b) }

func TestNamesOfTLS(t *testing.T) {
	hello := clientHello(t, "www.example.com")
	record := func(b []byte) []byte { return append([]byte{22, 3, 1, byte(len(b) >> 8), byte(len(b))}, b...) }
	// One handshake message in two records, of which the first ends in the name.
	body := hello[5:]
	cut := bytes.Index(body, []byte("www.example.com")) + 4
	split := append(record(body[:cut]), record(body[cut:])...)
	for _, c := range []struct {
		what  string
		bytes []byte
		name  string
		isTLS bool
	}{
		{"a hello", hello, "www.example.com", true},
		{"a hello in two records", split, "www.example.com", true},
		{"without a name", clientHello(t, ""), "", true},
		{"an address", clientHello(t, "203.0.113.1"), "", true},
		{"cut off", hello[:len(hello)-1], "", false},
		{"HTTP", []byte("GET / HTTP/1.1\r\nHost: www.example.com\r\n\r\n"), "", false},
		{"nothing", nil, "", false},
		{"endless", append([]byte{22, 3, 1, 0x40, 0}, bytes.Repeat([]byte{1, 0xff, 0xff, 0xff}, 1<<16)...), "", false},
	} {
		name, read, isTLS := readHello(byteConn{Reader: bytes.NewReader(c.bytes)})
		if name != c.name || isTLS != c.isTLS || !bytes.HasPrefix(c.bytes, read) || len(read) > maxHello {
			t.Errorf("%s: %q, TLS %v, %d bytes", c.what, name, isTLS, len(read))
		}
	}
}

func FuzzQuestion(f *testing.F) {
	f.Add(question(f, "example.com."))
	f.Add(question(f, "other.test."))
	f.Add([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1})
	p := newProxy(f, "other.example")
	f.Fuzz(func(t *testing.T, b []byte) {
		answer := p.answer(t.Context(), "udp4", guestAddress, b)
		if answer == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(answer); err != nil || !m.Response || len(answer) > 512 {
			t.Errorf("%d bytes, %v: %x", len(answer), err, answer)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	q := dnsmessage.Question{Name: dnsmessage.MustNewName("example.com."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	good := pack(dnsmessage.Header{ID: 3, Response: true}, &q, []netip.Addr{netip.MustParseAddr("203.0.113.1")}, 60)
	f.Add(good)
	f.Add(good[:len(good)-2])
	f.Add(question(f, "example.com."))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, truncated, err := understand(b, 3, q)
		if err == nil && !truncated && (e.until.Before(time.Now()) || len(e.addresses) > maxAnswers) {
			t.Errorf("%+v", e)
		}
	})
}

// TestAnswersOfOthers: an answer to another question is refused.
func TestAnswersOfOthers(t *testing.T) {
	q := dnsmessage.Question{Name: dnsmessage.MustNewName("example.com."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	other := q
	other.Name = dnsmessage.MustNewName("other.test.")
	address := []netip.Addr{netip.MustParseAddr("203.0.113.1")}
	for what, b := range map[string][]byte{
		"another id":        pack(dnsmessage.Header{ID: 4, Response: true}, &q, address, 60),
		"another name":      pack(dnsmessage.Header{ID: 3, Response: true}, &other, address, 60),
		"a question":        pack(dnsmessage.Header{ID: 3}, &q, nil, 0),
		"no question":       pack(dnsmessage.Header{ID: 3, Response: true}, nil, nil, 0),
		"not even a header": {1, 2, 3},
	} {
		if e, _, err := understand(b, 3, q); !errors.Is(err, errNotOurs) {
			t.Errorf("%s: %+v, %v", what, e, err)
		}
	}
	long := pack(dnsmessage.Header{ID: 3, Response: true}, &q, address, 1<<30)
	if e, _, err := understand(long, 3, q); err != nil || time.Until(e.until) > maxTTL {
		t.Errorf("%+v, %v", e, err)
	}
}
