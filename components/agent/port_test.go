package agent_test

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
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

// A listener is a process of the user, which connects its peers with those that
// claim them.
func TestListen(t *testing.T) {
	e := inGvisor
	e.need(t)
	f := newFixture(t, e, agent.GuestConfig{})
	p, err := f.conn.Exec(f.ctx(), execution.ExecSpec{Command: []string{agentproto.GuestBinary, agentproto.ListenFlag, "0"}, User: "1234"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	lines := bufio.NewReader(p.Stdout())
	scan := func(format string, into ...any) {
		t.Helper()
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscanf(line, format, into...); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
	}
	dial := func(port int) execution.Conn {
		t.Helper()
		c, err := f.conn.Dial(f.ctx(), port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	var port, relay, from int
	var token string
	scan("%d %d", &port, &relay)
	peer := dial(port)
	scan("%s %d", &token, &from)
	if len(token) != agentproto.ListenToken || from == 0 {
		t.Fatalf("%q %d", token, from)
	}
	stranger := dial(relay)
	if _, err := io.WriteString(stranger, strings.Repeat("0", agentproto.ListenToken)); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(stranger); err != nil || len(b) != 0 {
		t.Errorf("without the token: %q, %v", b, err)
	}
	claim := dial(relay)
	if _, err := io.WriteString(claim, token+"to the peer"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len("to the peer"))
	if _, err := io.ReadFull(peer, got); err != nil || string(got) != "to the peer" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := io.WriteString(peer, "answer"); err != nil {
		t.Fatal(err)
	}
	if err := peer.CloseWrite(); err != nil { // and still receives
		t.Fatal(err)
	}
	want := "\x00\x00\x00\x06answer\x00\x00\x00\x00"
	got = make([]byte, len(want))
	if _, err := io.ReadFull(claim, got); err != nil || string(got) != want {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := io.WriteString(claim, ", more"); err != nil {
		t.Fatal(err)
	}
	if err := claim.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(peer); err != nil || string(b) != ", more" {
		t.Errorf("%q, %v", b, err)
	}
	// A connection that is refused is closed at once, others stay.
	refused := dial(port)
	scan("%s %d", &token, &from)
	if _, err := io.WriteString(p.Stdin(), "\nnone\n"+token+"\n"); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(refused); err != nil || len(b) != 0 {
		t.Errorf("%q, %v", b, err)
	}
	if r := f.exec(execution.ExecSpec{Command: []string{agentproto.GuestBinary, agentproto.ListenFlag, fmt.Sprint(port)}, User: "1234"}); r.code != 1 || !strings.Contains(r.err, "in use") {
		t.Errorf("a port that is in use: %+v", r)
	}
	p.Stdin().Close()
	if code, err := p.Wait(f.ctx()); err != nil || code != 0 {
		t.Errorf("%d, %v", code, err)
	}
}
