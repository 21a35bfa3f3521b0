// Package badrequest tests that an HTTP server answers a request that net/http refuses.
package badrequest

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// Answered sends requests with a malformed header, and a body that nothing reads, to the HTTP server
// at addr. Each must be answered with status 400, and its connection end after that without a reset.
func Answered(t *testing.T, addr string) {
	t.Helper()
	body := strings.Repeat("x", 16384) // more than net/http reads with the header
	for range 20 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(wait.Limit))
		if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nAccept: \x1d\r\nContent-Length: 16384\r\n\r\n"+body); err != nil {
			t.Fatal(err)
		}
		if answer, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
			t.Fatalf("the answer is %q, %v", answer, err)
		}
	}
}
