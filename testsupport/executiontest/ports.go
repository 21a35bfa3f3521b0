package executiontest

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

func testDial(t *testing.T, e *Env) {
	within(t, "sandbox", func(t *testing.T) {
		s := e.spec("dial", "serve", "8082")
		s.Network = execution.NetworkBridge
		e.Start(t, s)
		e.has(t, s.ID, "serving 8082")
		client := http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return e.Driver.Dial(ctx, s.ID, 8082) },
		}}
		defer client.CloseIdleConnections()
		wait.NoError(t, "answer through the agent", func() error {
			res, err := client.Get("http://sandbox/path")
			if err != nil {
				return err
			}
			defer res.Body.Close()
			if b, err := io.ReadAll(res.Body); err != nil || string(b) != "hello /path\n" {
				t.Errorf("answer %q, %v", b, err)
			}
			return nil
		})
		c, err := e.Driver.Dial(t.Context(), s.ID, 8082)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			t.Error(err)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil || !err.(net.Error).Timeout() {
			t.Errorf("read with a deadline: %v", err)
		}
		if err := c.SetReadDeadline(time.Time{}); err != nil {
			t.Error(err)
		}
		if _, err := io.WriteString(c, "GET /half HTTP/1.0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Error(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(res.Body); string(b) != "hello /half\n" || err != nil {
			t.Errorf("after the end of what was sent: %q, %v", b, err)
		}
		if _, err := e.Driver.Dial(t.Context(), s.ID, 8083); !errs.Is(err, errs.FailedPrecondition) {
			t.Errorf("a port on which nothing listens: %v", err)
		}
	})
	within(t, "activity", func(t *testing.T) {
		s := e.spec("activity")
		s.Idle = true
		e.Start(t, s)
		activity := func() execution.Activity {
			t.Helper()
			a, err := e.Driver.Activity(t.Context(), s.ID)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		wait.For(t, "it is idle", func() bool { return activity().Idle > 100*time.Millisecond })
		p, err := e.Driver.Exec(t.Context(), s.ID, guest("cat"))
		if err != nil {
			t.Fatal(err)
		}
		if a := activity(); a.Processes != 1 || a.Idle > time.Second {
			t.Errorf("with a process: %+v", a)
		}
		p.Close()
		wait.For(t, "it is idle again", func() bool { a := activity(); return a.Processes == 0 && a.Idle > 100*time.Millisecond })
	})
}
