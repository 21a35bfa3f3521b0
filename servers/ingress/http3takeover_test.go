package ingress

import (
	"io"
	"net/http"
	"testing"

	"miren.dev/runtime/testsupport/tlstest"
	"miren.dev/runtime/testsupport/wait"
)

// conversation is a request of HTTP/3 whose body goes on while its answer comes.
type conversation struct {
	t    *testing.T
	up   *io.PipeWriter
	resp *http.Response
}

func converse(t *testing.T, ca *tlstest.Authority, s *succession) *conversation {
	t.Helper()
	c := http3Client(t, ca)
	url := "https://" + s.now.secure[0].Addr().String()
	wait.NoError(t, "an answer", func() error {
		resp, err := c.Do(request(t, http.MethodGet, url, testHost))
		if err == nil {
			resp.Body.Close()
		}
		return err
	})
	pr, pw := io.Pipe()
	req := request(t, http.MethodPost, url, testHost)
	req.Body = pr
	v := &conversation{t: t, up: pw}
	go func() { _, _ = pw.Write([]byte("first")) }()
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	v.resp = resp
	t.Cleanup(func() { pw.Close(); resp.Body.Close() })
	v.hears("first")
	return v
}

func (v *conversation) hears(text string) {
	v.t.Helper()
	b := make([]byte, len(text))
	if _, err := io.ReadFull(v.resp.Body, b); err != nil || string(b) != text {
		v.t.Fatalf("%q %v", b, err)
	}
}

func (v *conversation) says(text string) {
	v.t.Helper()
	if _, err := v.up.Write([]byte(text)); err != nil {
		v.t.Fatal(err)
	}
	v.hears(text)
}

// echoes answers with each piece of the body as it comes.
func echoes(w http.ResponseWriter, r *http.Request) {
	c := http.NewResponseController(w)
	_ = c.EnableFullDuplex() // HTTP/1.1 supports it
	w.WriteHeader(http.StatusOK)
	_ = c.Flush() // the copy ends if the client is gone
	b := make([]byte, 1<<10)
	for {
		n, err := r.Body.Read(b)
		if _, werr := w.Write(b[:n]); werr != nil || err != nil {
			return
		}
		_ = c.Flush()
	}
}

// TestHTTP3RequestOutlivesTakeovers: a request that is under way in a process goes on while two
// successors after each other serve, the second of which is killed.
func TestHTTP3RequestOutlivesTakeovers(t *testing.T) {
	up := upstream(t, echoes)
	ca := tlstest.New(t)
	s := newSuccession(t, ca, up.URL)
	first := s.now
	v := converse(t, ca, s)
	_, ended := s.takeOver()
	wait.For(t, "the first does not read the socket", func() bool { return allHandedOver(first) })
	v.says("second")
	second := s.now
	later := converse(t, ca, s)
	_, ended2 := s.takeOver()
	wait.For(t, "the second does not read the socket", func() bool { return allHandedOver(second) })
	v.says("third")
	later.says("third")
	for _, x := range s.now.http3.sockets { // as the kernel does for a process that is killed
		x.Close()
	}
	wait.For(t, "the second reads the socket again", func() bool { return !allHandedOver(second) })
	later.says("fourth")
	v.says("fourth")
	later.up.Close()
	v.up.Close()
	if _, err := io.ReadAll(v.resp.Body); err != nil {
		t.Error(err)
	}
	wait.Receive(t, "the first ends", ended)
	wait.Receive(t, "the second ends", ended2)
}

func allHandedOver(r *running) bool {
	for _, s := range r.http3.sockets {
		if !s.HandedOver() {
			return false
		}
	}
	return true
}

// TestHTTP3WithoutSuccessor: a process that ends without a successor lets requests finish, and
// refuses new connections.
func TestHTTP3WithoutSuccessor(t *testing.T) {
	up := upstream(t, echoes)
	ca := tlstest.New(t)
	s := newSuccession(t, ca, up.URL)
	v := converse(t, ca, s)
	stopped := make(chan struct{})
	go func() { defer close(stopped); s.now.stop() }()
	wait.For(t, "new connections are refused", func() bool { return s.now.http3.refuses.Load() })
	v.says("second")
	resp, err := http3Client(t, ca).Do(request(t, http.MethodGet, "https://"+s.now.secure[0].Addr().String(), testHost))
	if err == nil {
		resp.Body.Close()
		t.Errorf("a new connection: %s", resp.Status)
	}
	v.up.Close()
	if _, err := io.ReadAll(v.resp.Body); err != nil {
		t.Error(err)
	}
	wait.Receive(t, "the end", stopped)
}
