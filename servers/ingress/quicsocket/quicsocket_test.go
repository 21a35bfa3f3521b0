package quicsocket

import (
	"bytes"
	"net"
	"testing"

	"golang.org/x/net/ipv4"

	"miren.dev/runtime/pkg/errs"
)

func testGenerator(t testing.TB, n byte, s Secret) *generator {
	t.Helper()
	k, err := s.keys()
	if err != nil {
		t.Fatal(err)
	}
	return &generator{n, k.id}
}

// TestForeign: only a packet with an id that another process with the same secret issued is
// foreign.
func TestForeign(t *testing.T) {
	s := NewSecret()
	own, other, stranger := testGenerator(t, 1, s), testGenerator(t, 2, s), testGenerator(t, 3, NewSecret())
	packets := func(g *generator) [][]byte {
		id, err := g.GenerateConnectionID()
		if err != nil || id.Len() != g.ConnectionIDLen() {
			t.Fatal(id, err)
		}
		short := append([]byte{0x40}, append(id.Bytes(), "payload"...)...)
		long := append([]byte{0xe0, 0, 0, 0, 1, idSize}, append(id.Bytes(), 0, 1, 2)...)
		return [][]byte{short, long}
	}
	for _, p := range packets(other) {
		if !own.foreign(p) {
			t.Errorf("% x of the other is not foreign", p)
		}
		for n := range p[:idSize] {
			own.foreign(p[:n]) // which is too short, and must not panic
		}
	}
	for _, g := range []*generator{own, stranger} {
		for _, p := range packets(g) {
			if own.foreign(p) {
				t.Errorf("% x of generation %d is foreign", p, g.generation)
			}
		}
	}
}

func TestSecret(t *testing.T) {
	if err := Secret("short").Check(); !errs.Is(err, errs.InvalidArgument) {
		t.Error(err)
	}
	if s := NewSecret(); s.String() != "[secret]" || s.Check() != nil {
		t.Errorf("%d", len(s))
	}
}

func TestPacketRoundTrip(t *testing.T) {
	for _, addr := range []*net.UDPAddr{{IP: net.IPv4(192, 0, 2, 1), Port: 443}, {IP: net.ParseIP("fe80::1"), Port: 1, Zone: "eth0"}} {
		m := ipv4.Message{Addr: addr, OOB: []byte("control and room"), NN: 7, Buffers: [][]byte{[]byte("datagram and room")}, N: 8}
		b, err := appendPacket(nil, &m)
		if err != nil {
			t.Fatal(err)
		}
		p, err := parsePacket(b)
		if err != nil || p.from.String() != addr.String() || string(p.control) != "control" || string(p.data) != "datagram" {
			t.Errorf("%+v %v", p, err)
		}
		got := ipv4.Message{OOB: make([]byte, 3), Buffers: [][]byte{make([]byte, 4)}}
		p.fill(&got)
		if got.N != 4 || got.NN != 3 || !bytes.Equal(got.Buffers[0], []byte("data")) {
			t.Errorf("%+v", got)
		}
	}
}

func FuzzPackets(f *testing.F) {
	m := ipv4.Message{Addr: &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 443}, OOB: []byte("c"), NN: 1, Buffers: [][]byte{[]byte("d")}, N: 1}
	b, err := appendPacket(nil, &m)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{kindPacket})
	f.Add([]byte{0xc3, 0, 0, 0, 1, 200})
	g := testGenerator(f, 1, NewSecret())
	f.Fuzz(func(t *testing.T, b []byte) {
		g.foreign(b)
		if len(b) == 0 {
			return // a message has a kind
		}
		if p, err := parsePacket(b); err == nil && !p.from.AddrPort().IsValid() {
			t.Errorf("%+v", p)
		}
	})
}
