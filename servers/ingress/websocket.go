package ingress

import (
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// ExtendedConnect is the setting in GODEBUG with which a process must start so that clients may
// open WebSockets by HTTP/2: net/http has no other way to permit it (go.dev/issue/71128).
const ExtendedConnect = "http2xconnect=1"

const (
	protocolHeader = ":protocol" // where net/http keeps what the client asks for
	websocketToken = "websocket"
	// websocketGUID is what a server's answer to a key is made with (RFC 6455, section 1.3).
	websocketGUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
)

var (
	errNotAccepted = errors.New("the answer to the WebSocket's key is missing or wrong")
	errNoUpgrade   = errors.New("the sandbox answered the opening of a WebSocket as a plain request")
	errH2CUpgrade  = errors.New("a service that speaks h2c gets no WebSockets")
)

// stream is a request by which a client of HTTP/2 (RFC 8441) or HTTP/3 (RFC 9220) opens a
// WebSocket. The sandbox gets it as one of HTTP/1.1.
type stream struct {
	body   io.ReadCloser // what the client sends
	accept string        // the answer that the sandbox owes to the key
}

// openStream returns the request of HTTP/1.1 that stands for an extended CONNECT. Without one it
// returns r and nil. The protocol must be checked: ok says whether it is a WebSocket.
func openStream(r *http.Request) (_ *http.Request, s *stream, ok bool) {
	protocol := r.Header[protocolHeader]
	if r.ProtoMajor < 2 || r.Method != http.MethodConnect || len(protocol) != 1 {
		return r, nil, true
	}
	delete(r.Header, protocolHeader)
	if !strings.EqualFold(protocol[0], websocketToken) {
		return r, nil, false
	}
	s = &stream{body: r.Body}
	var nonce [16]byte
	rand.Read(nonce[:]) // never fails
	key := base64.StdEncoding.EncodeToString(nonce[:])
	sum := sha1.Sum([]byte(key + websocketGUID))
	s.accept = base64.StdEncoding.EncodeToString(sum[:])

	out := new(http.Request)
	*out = *r
	out.Method, out.Body, out.ContentLength, out.Trailer = http.MethodGet, http.NoBody, 0, nil
	out.Header = r.Header.Clone()
	out.Header.Del("Content-Length")
	out.Header["Connection"], out.Header["Upgrade"] = []string{"Upgrade"}, []string{websocketToken}
	out.Header["Sec-Websocket-Key"] = []string{key}
	return out, s, true
}

// check returns an error if the answer may not be relayed: to the client every status from 200
// to 299 says that the WebSocket is open.
func (s *stream) check(status int, h http.Header) error {
	switch {
	case s == nil:
		return nil
	case status == http.StatusSwitchingProtocols:
		if h.Get("Sec-Websocket-Accept") != s.accept {
			return errNotAccepted
		}
	case status < 300:
		return errNoUpgrade
	}
	return nil
}

// tunnelStream connects the client's stream and the sandbox after status 101.
//
// When the sandbox ends its side, the stream ends. When the client does, the sandbox may still
// send, for as long as in any tunnel. What breaks one side resets the other.
func (x *exchange) tunnelStream(c *upConn) error {
	h := x.w.Header()
	h.Del("Sec-Websocket-Accept")
	h.Del("Content-Length")
	x.head(&response{status: http.StatusOK})
	x.upgraded = true
	control := http.NewResponseController(x.w)
	_ = c.Conn.SetDeadline(time.Time{})
	_ = control.SetReadDeadline(time.Time{})
	x.w.WriteHeader(http.StatusOK)
	if err := control.Flush(); err != nil {
		return &clientReadError{err}
	}
	up := make(chan struct{})
	go func() {
		defer close(up)
		_, err := io.Copy(c.Conn, x.stream.body)
		if half, ok := c.Conn.(halfCloser); ok && err == nil && half.CloseWrite() == nil {
			_ = c.Conn.SetReadDeadline(time.Now().Add(halfOpenLife))
		} else if !errors.Is(err, os.ErrDeadlineExceeded) { // the sandbox is gone, or the client
			c.Conn.Close()
			_ = control.SetWriteDeadline(time.Unix(1, 0))
		}
	}()
	n, err := io.Copy(&flushing{x.w, control}, c.br)
	x.bytes += n
	_ = control.SetReadDeadline(time.Unix(1, 0)) // ends the other direction
	c.Conn.Close()
	<-up
	x.aborted = err != nil && x.r.Context().Err() == nil
	return nil
}

// flushing sends each piece at once.
type flushing struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func (f *flushing) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err == nil {
		err = f.control.Flush()
	}
	return n, err
}
