package agent_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// carry runs an exec while disturb disturbs the connection, and checks that
// neither input nor output loses a byte.
func (f *fixture) carry(disturb func()) {
	f.t.Helper()
	p, err := f.conn.Exec(f.ctx(), execution.ExecSpec{Command: []string{"cat"}})
	if err != nil {
		f.t.Fatal(err)
	}
	defer p.Close()
	var in, out bytes.Buffer
	for i := range uint32(200_000) {
		in.Write(binary.LittleEndian.AppendUint32(nil, i))
	}
	var wg sync.WaitGroup
	half := make(chan struct{})
	wg.Go(func() {
		b := in.Bytes()
		n := len(b) / 2
		if _, err := p.Stdin().Write(b[:n]); err != nil {
			f.t.Error(err)
		}
		close(half)
		if _, err := p.Stdin().Write(b[n:]); err != nil {
			f.t.Error(err)
		}
		p.Stdin().Close()
	})
	wg.Go(func() {
		<-half
		_, _ = io.Copy(&out, p.Stdout()) // compared below
	})
	// Half of the input fits into the windows; then nothing moves until out is
	// read.
	disturb()
	code, err := p.Wait(f.ctx())
	wg.Wait()
	if code != 0 || err != nil || !bytes.Equal(in.Bytes(), out.Bytes()) {
		f.t.Errorf("code %d, %v, %d bytes of %d", code, err, out.Len(), in.Len())
	}
}

// The hub gives a silent agent up, and accepts it again when it speaks.
func TestSilentAgent(t *testing.T) {
	e := asProcess
	e.need(t)
	f := newFixture(t, e, agent.GuestConfig{})
	f.carry(func() {
		if err := f.guest.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		wait.For(t, "the silence is noticed", func() bool { return !f.conn.Connected() })
		if err := f.guest.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		wait.For(t, "the agent is back", f.conn.Connected)
	})
}

// A checkpoint that leaves the sandbox running cuts the connection without
// telling the guest.
func TestAgentRedialsAfterCheckpoint(t *testing.T) {
	e := inGvisor
	e.need(t)
	f := newFixture(t, e, agent.GuestConfig{Command: []string{e.tool, "sleep"}})
	f.carry(func() {
		image := filepath.Join(t.TempDir(), "image")
		if err := os.Mkdir(image, 0o700); err != nil {
			t.Fatal(err)
		}
		args := append(f.guest.flags[:len(f.guest.flags):len(f.guest.flags)], "checkpoint", "-leave-running", "-image-path", image, f.guest.id)
		if b, err := exec.Command(built.runsc, args...).CombinedOutput(); err != nil {
			t.Fatalf("checkpoint: %v: %s", err, b)
		}
		began := time.Now()
		wait.For(t, "the agent is back", f.conn.Connected)
		t.Logf("connected again after %v", time.Since(began))
	})
	if r := f.sh("echo still here"); r.out != "still here\n" {
		t.Errorf("%+v", r)
	}
}

// A peer without the token gets nothing, and does not disturb the agent.
func TestSocketNeedsToken(t *testing.T) {
	e := asProcess
	e.need(t)
	f := newFixture(t, e, agent.GuestConfig{})
	socket := filepath.Join(f.config.Dir, id, agentproto.SocketName)
	for _, hello := range [][]byte{
		nil, {1, 2, 3}, bytes.Repeat([]byte{255}, 1000),
		agentproto.AppendFrame(nil, agentproto.Frame{Type: agentproto.THello, Payload: agentproto.Hello{MinVersion: 1, MaxVersion: 1, Token: "wrong"}.Append(nil)}),
		agentproto.AppendFrame(nil, agentproto.Frame{Type: agentproto.THello, Payload: agentproto.Hello{MinVersion: 7, MaxVersion: 9}.Append(nil)}),
	} {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(hello) // it may be refused before
		if uc, ok := c.(*net.UnixConn); ok {
			_ = uc.CloseWrite()
		}
		b, _ := io.ReadAll(c)
		c.Close()
		if len(b) > 0 {
			f, err := agentproto.NewReader(bytes.NewReader(b), 1000).Read()
			m, derr := agentproto.DecodeWelcome(f.Payload)
			if err != nil || derr != nil || m.Refused == "" {
				t.Errorf("%.20x was answered %x", hello, b)
			}
		}
	}
	if r := f.sh("echo hi"); r.out != "hi\n" {
		t.Errorf("%+v", r)
	}
}

// The agent refuses a message of a newer peer at once, so that no caller waits for an answer that does not come; and
// the connection continues.
func TestUnknownMessages(t *testing.T) {
	const unknown = agentproto.Type(200)
	t.Run("to the agent", func(t *testing.T) {
		everywhere(t, func(t *testing.T, e environment) {
			f := newFixture(t, e, agent.GuestConfig{})
			for _, typ := range []agentproto.Type{unknown, agentproto.THello, agentproto.TOpened} {
				began := time.Now()
				err := f.conn.Request(f.ctx(), typ)
				if took := time.Since(began); !errs.Is(err, errs.Unimplemented) || took > time.Second {
					t.Errorf("a message of type %d: %v after %s", typ, err, took)
				}
			}
			if r := f.sh("echo hi"); r.out != "hi\n" {
				t.Errorf("%+v", r)
			}
		})
	})
	t.Run("to the node", func(t *testing.T) {
		p := newPeer(t)
		p.send(agentproto.TRefused, 6, raw{}) // is not answered
		p.send(unknown, 7, raw{'?'})
		began := time.Now()
		for {
			f, err := p.r.Read()
			if err != nil {
				t.Fatal(err)
			}
			if f.Type != agentproto.TRefused {
				continue
			}
			m, err := agentproto.DecodeFailure(f.Payload)
			if took := time.Since(began); f.ID != 7 || err != nil || m.Kind != agentproto.Unsupported || took > time.Second {
				t.Errorf("refused %d with %+v, %v after %s", f.ID, m, err, took)
			}
			return
		}
	})
}

type raw []byte

func (r raw) Append(b []byte) []byte { return append(b, r...) }
