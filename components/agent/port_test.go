package agent_test

import (
	"bytes"
	"crypto/rand"
	"io"
	"testing"
	"time"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// A port is reached on whatever address something listens, without a network, and its bytes are complete.
func TestDial(t *testing.T) {
	e := inGvisor
	e.need(t)
	f := newFixture(t, e, agent.GuestConfig{Command: []string{e.tool, "echo", "127.0.0.1:7001", "[::1]:7002", ":7003"}})
	wait.For(t, "it listens", func() bool { return len(f.lines(execution.LogQuery{})) > 0 })
	data := make([]byte, 8<<20)
	_, _ = rand.Read(data) // never fails
	for _, port := range []int{7001, 7002, 7003} {
		c, err := f.conn.Dial(f.ctx(), port)
		if err != nil {
			t.Errorf("port %d: %v", port, err)
			continue
		}
		began := time.Now()
		sent := make(chan error, 1)
		go func() {
			_, err := c.Write(data)
			if err == nil {
				err = c.CloseWrite()
			}
			sent <- err
		}()
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("port %d: %d bytes of %d came back, %v", port, len(got), len(data), err)
		}
		if err := wait.Receive(t, "the end of writing", sent); err != nil {
			t.Error(err)
		}
		t.Logf("%.0f MB/s each way", float64(len(data))/1e6/time.Since(began).Seconds())
		c.Close()
	}
	if _, err := f.conn.Dial(f.ctx(), 7004); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("a port on which nothing listens: %v", err)
	}
	if _, err := f.conn.Dial(f.ctx(), 70000); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("no port: %v", err)
	}
	open, err := f.conn.Dial(f.ctx(), 7001)
	if err != nil {
		t.Fatal(err)
	}
	if a, err := f.conn.Activity(f.ctx()); err != nil || a.Connections != 1 {
		t.Errorf("%+v %v", a, err)
	}
	open.Close()
	wait.For(t, "the connection inside is closed", func() bool {
		a, err := f.conn.Activity(f.ctx())
		return err == nil && a.Connections == 0
	})
}
