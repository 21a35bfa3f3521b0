package ingress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"miren.dev/runtime/testsupport/badrequest"
	"miren.dev/runtime/testsupport/tlstest"
	"miren.dev/runtime/testsupport/wait"
)

// field is a line of a head as a client sends it.
type field struct{ name, value string }

// TestMalformedHeadIsAnswered: net/http refuses a head before the ingress sees it.
func TestMalformedHeadIsAnswered(t *testing.T) { badrequest.Answered(t, start(t, Config{}).addr) }

// sendH1 sends a head by HTTP/1.1 as it is given, and returns when the connection has ended.
func sendH1(t *testing.T, ca *tlstest.Authority, addr string, head []field) {
	t.Helper()
	c, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: ca.Pool(), ServerName: testHost})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var line, rest string
	for _, f := range head {
		switch f.name {
		case ":method":
			line = f.value + line
		case ":path":
			line += " " + f.value + " HTTP/1.1\r\n"
		case ":authority":
			rest += "Host: " + f.value + "\r\n"
		case ":scheme":
		default:
			rest += f.name + ": " + f.value + "\r\n"
		}
	}
	_, _ = io.WriteString(c, line+rest+"Connection: close\r\n\r\n")
	_, _ = io.Copy(io.Discard, c) // the head that the app gets is what counts
}

// sendH2 sends a head by HTTP/2 as it is given, and returns when the stream has ended.
func sendH2(t *testing.T, ca *tlstest.Authority, addr string, head []field) {
	t.Helper()
	c, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: ca.Pool(), ServerName: testHost, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, http2.ClientPreface) // a lost connection ends the read below
	fr := http2.NewFramer(c, c)
	_ = fr.WriteSettings()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range head {
		_ = enc.WriteField(hpack.HeaderField{Name: f.name, Value: f.value}) // a buffer takes everything
	}
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			return
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = fr.WriteSettingsAck()
			}
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				return
			}
		case *http2.DataFrame:
			if f.StreamEnded() {
				return
			}
		}
	}
}

// sendH3 sends a head by HTTP/3 as it is given, and returns when the stream has ended.
func sendH3(t *testing.T, ca *tlstest.Authority, addr string, head []field) {
	t.Helper()
	conn, err := quic.DialAddr(t.Context(), addr, &tls.Config{RootCAs: ca.Pool(), ServerName: testHost, NextProtos: []string{http3.NextProtoH3}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseWithError(0, "") }()
	control, err := conn.OpenUniStream()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = control.Write([]byte{0, 4, 0}) // the stream of settings, which has none
	st, err := conn.OpenStreamSync(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	block := []byte{0, 0} // RFC 9204: no dynamic table
	for _, f := range head {
		block = append(appendPrefixed(block, 0x20, 3, len(f.name)), f.name...) // literal name, no Huffman code
		block = append(appendPrefixed(block, 0, 7, len(f.value)), f.value...)
	}
	_, _ = st.Write(append([]byte{1, byte(0x40 | len(block)>>8), byte(len(block))}, block...))
	st.Close()
	_, _ = io.Copy(io.Discard, st)
}

// appendPrefixed appends an integer with a prefix of n bits (RFC 7541, section 5.1).
func appendPrefixed(b []byte, first byte, n, v int) []byte {
	limit := 1<<n - 1
	if v < limit {
		return append(b, first|byte(v))
	}
	b = append(b, first|byte(limit))
	for v -= limit; v >= 128; v >>= 7 {
		b = append(b, byte(v)|128)
	}
	return append(b, byte(v))
}

// TestMalformedHeads: an app gets the request that the ingress has judged, or none. A client of
// HTTP/2 can write spaces into a method, a path and a host, and a second host, all of which
// HTTP/1.1 reads in another way.
func TestMalformedHeads(t *testing.T) {
	heads := make(chan string, 10)
	l := accepting(t, func(c net.Conn) {
		for br := bufio.NewReader(c); ; {
			var head strings.Builder
			for !strings.HasSuffix(head.String(), "\r\n\r\n") {
				line, err := br.ReadString('\n')
				if err != nil {
					return
				}
				head.WriteString(line)
			}
			heads <- head.String()
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") // a lost connection ends the loop
		}
	})
	ca := tlstest.New(t)
	in := withApp(t, ca, Config{}, "http://"+l.Addr().String())
	addr := in.secure[0].Addr().String()
	c := http3Client(t, ca)
	wait.NoError(t, "HTTP/3", func() error {
		resp, err := c.Do(request(t, http.MethodGet, "https://"+addr, testHost))
		if err == nil {
			resp.Body.Close()
		}
		return err
	})
	for len(heads) > 0 {
		<-heads
	}
	head := func(method, host, path string, more ...field) []field {
		return append([]field{{":method", method}, {":scheme", "https"}, {":authority", host}, {":path", path}}, more...)
	}
	for _, p := range []struct {
		name string
		send func(*testing.T, *tlstest.Authority, string, []field)
	}{{"HTTP/1.1", sendH1}, {"HTTP/2", sendH2}, {"HTTP/3", sendH3}} {
		for _, x := range []struct {
			name string
			head []field
			want string // that the head which the app gets begins with; "": it gets none
		}{
			{"as usual", head("GET", testHost, "/a?b=c"), "GET /a?b=c HTTP/1.1\r\nHost: " + testHost + "\r\n"},
			{"a space in the method", head("GET /admin", testHost, "/"), ""},
			{"a space in the path", head("GET", testHost, "/admin HTTP/1.1?x="), ""},
			{"a fragment", head("GET", testHost, "/admin#x"), ""},
			{"a path that is a URL of another form", head("GET", testHost, "http:http://"+testHost+"/admin"), ""},
			{"a space in the host", head("GET", testHost+":1 x", "/"), ""},
			{"two hosts", head("GET", testHost, "/", field{"host", "other.example.com"}), ""},
		} {
			p.send(t, ca, addr, x.head)
			select {
			case got := <-heads:
				if x.want == "" || !strings.HasPrefix(got, x.want) {
					t.Errorf("%s, %s: the app gets %q", p.name, x.name, got)
				}
			default:
				if x.want != "" {
					t.Errorf("%s, %s: the app gets nothing", p.name, x.name)
				}
			}
		}
	}
	// A host in both places is one host, and a client may send it as HTTP/1.1 does.
	both := head("GET", testHost, "/", field{"host", testHost})
	for name, h := range map[string][]field{"twice the same host": both, "a host without authority": {both[0], both[1], both[3], both[4]}} {
		sendH2(t, ca, addr, h)
		if got := wait.Receive(t, "a head", heads); strings.Count(got, "\r\nHost: ") != 1 {
			t.Errorf("%s: the app gets %q", name, got)
		}
	}
}
