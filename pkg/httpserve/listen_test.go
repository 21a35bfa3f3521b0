package httpserve

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/badrequest"
	"miren.dev/runtime/testsupport/wait"
)

func TestMalformedRequestIsAnswered(t *testing.T) { badrequest.Answered(t, serve(t, 100)) }

// TestConnectionsAreLimited has a client wait until another one has gone.
func TestConnectionsAreLimited(t *testing.T) {
	addr := serve(t, 1)
	first, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(c net.Conn) error {
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		return err
	}
	if err := ask(first); err != nil {
		t.Fatal(err)
	}
	second, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	answered := make(chan error, 1)
	go func() { answered <- ask(second) }()
	select {
	case err := <-answered:
		t.Fatalf("the second connection was served beside the first: %v", err)
	case <-time.After(100 * time.Millisecond): // what is tested
	}
	first.Close()
	if err := wait.Receive(t, "the answer", answered); err != nil {
		t.Error(err)
	}
}

// serve serves with a limit of connections until the test ends.
func serve(t *testing.T, connections int) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: 10 * time.Second}
	t.Cleanup(func() { srv.Close() })
	go srv.Serve(Limit(l, connections))
	return l.Addr().String()
}
