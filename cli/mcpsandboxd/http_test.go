package mcpsandboxd

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/testsupport/wait"
)

func TestToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	made, err := readToken(path)
	if err != nil || len(made) < 20 {
		t.Fatalf("%q, %v", made, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if again, err := readToken(path); err != nil || again != made {
		t.Errorf("%q became %q, %v", made, again, err)
	}
	if err := os.WriteFile(path, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readToken(path); err == nil {
		t.Error("an empty token is accepted")
	}
}

// TestTokenIsMadeOnce: processes that start at once have the same token.
func TestTokenIsMadeOnce(t *testing.T) {
	for range 50 {
		path := filepath.Join(t.TempDir(), "token")
		var g errgroup.Group
		var tokens [4]string
		for i := range tokens {
			g.Go(func() (err error) {
				tokens[i], err = readToken(path)
				return err
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		for _, token := range tokens {
			if token != tokens[0] {
				t.Fatalf("tokens %q", tokens)
			}
		}
	}
}

// TestSlowBodies: a client that does not send its body is not waited for; one that
// has sent it may wait for the answer.
func TestSlowBodies(t *testing.T) {
	const limit = 100 * time.Millisecond
	bodies := make(chan error, 2)
	gone := make(chan bool, 2)
	srv := httptest.NewServer(timed(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		bodies <- err
		select {
		case <-r.Context().Done():
			gone <- true
		case <-time.After(3 * limit):
			gone <- false
		}
	}), limit))
	defer srv.Close()
	c, err := net.Dial("tcp", strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"); err != nil {
		t.Fatal(err)
	}
	if err := wait.Receive(t, "the handler reads", bodies); err == nil {
		t.Error("a part of a body is a body")
	}
	wait.Receive(t, "the handler ends", gone)
	resp, err := http.Post(srv.URL, "text/plain", strings.NewReader("abc"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if err := wait.Receive(t, "the handler reads", bodies); err != nil {
		t.Errorf("a whole body: %v", err)
	}
	if wait.Receive(t, "the handler ends", gone) {
		t.Error("the client that waits for an answer is taken for gone")
	}
}
