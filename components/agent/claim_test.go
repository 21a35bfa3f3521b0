package agent_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// The capability to set the host name is there for the claim alone, and for the agent alone.
func TestClaimDropsPrivileges(t *testing.T) {
	e := inGvisor
	e.need(t)
	f := newFixture(t, e, agent.GuestConfig{Claimable: true, PIDs: 60})
	// The thread that starts processes has fewer capabilities, and may be the first one.
	threads := f.sh("grep -h CapEff /proc/1/task/*/status | sort -u").out
	if !strings.Contains(threads, "CapEff:\t00000000000001e3\n") || strings.Contains(threads, "2001e3") {
		t.Errorf("the agent before the claim: %s", threads)
	}
	if got := f.sh("grep -h Cap /proc/self/status | grep -v 0000000000000000").out; got != "" {
		t.Errorf("a process before the claim: %s", got)
	}
	if err := f.conn.Configure(f.ctx(), execution.Identity{Claim: "c", Hostname: "named", Env: []string{"A=1"}, PIDs: 50}); err != nil {
		t.Fatal(err)
	}
	if r := f.sh("hostname; echo $A"); r.out != "named\n1\n" {
		t.Errorf("%+v", r)
	}
	wait.For(t, "no thread may administer", func() bool {
		return f.sh("grep -h CapPrm /proc/1/task/*/status | sort -u").out == "CapPrm:\t00000000000000e3\n"
	})
	if r := f.exec(execution.ExecSpec{Command: []string{"id", "-u"}, User: "app"}); r.out != "1234\n" {
		t.Errorf("another user after the claim: %+v", r)
	}
	if err := f.conn.Configure(f.ctx(), execution.Identity{Claim: "d"}); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("a second claim: %v", err)
	}
	f.restart()
	if err := f.conn.Configure(f.ctx(), execution.Identity{Claim: "c"}); err != nil {
		t.Errorf("the claim repeated: %v", err)
	}
}

// An agent that does not know a request says so, and its caller learns it.
func TestOldAgentRefusesClaim(t *testing.T) {
	p := newPeer(t)
	go func() {
		for f, ok := p.await(agentproto.TConfigure); ok; f, ok = p.await(agentproto.TConfigure) {
			p.send(agentproto.TRefused, f.ID, agentproto.Refuse(f.Type))
		}
	}()
	began := time.Now()
	c, err := p.hub.Conn(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Configure(t.Context(), execution.Identity{Claim: "c"}); !errs.Is(err, errs.Unimplemented) || time.Since(began) > wait.Limit {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}

// peer is a program in the place of an agent.
type peer struct {
	spool string // where it leaves its log and its record of the end
	t     *testing.T
	hub   *agent.Hub
	c     net.Conn
	r     *agentproto.Reader
}

// await drops frames up to the next one of a type. ok is false if the connection ends first.
func (p *peer) await(wanted agentproto.Type) (f agentproto.Frame, ok bool) {
	for {
		f, err := p.r.Read()
		if err != nil || f.Type == wanted {
			return f, err == nil
		}
	}
}

// newPeer returns one that has been accepted.
func newPeer(t *testing.T) *peer {
	t.Helper()
	return newPeerOf(t, agentproto.Heartbeat)
}

// newPeerOf is newPeer for a hub with another heartbeat.
func newPeerOf(t *testing.T, heartbeat time.Duration) *peer {
	t.Helper()
	need.Root(t)
	config := agent.HubConfig{
		Dir: filepath.Join(t.TempDir(), "agents"), LogDir: filepath.Join(t.TempDir(), "logs"), AgentPath: built.agent, AgentDir: t.TempDir(),
		Heartbeat: heartbeat,
	}
	p := &peer{t: t, hub: agent.NewHub(config)}
	t.Cleanup(func() { p.hub.Close() })
	g, err := p.hub.Prepare(id, agent.GuestConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range g.Mounts {
		if m.Target == agentproto.GuestLog {
			p.spool = m.Source
		}
	}
	b, err := os.ReadFile(filepath.Join(config.Dir, id, agentproto.ConfigName))
	if err != nil {
		t.Fatal(err)
	}
	guest, err := agentproto.DecodeConfig(b)
	if err != nil {
		t.Fatal(err)
	}
	if p.c, err = net.Dial("unix", filepath.Join(config.Dir, id, agentproto.SocketName)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.c.Close() })
	if err := p.c.SetDeadline(time.Now().Add(wait.Limit)); err != nil {
		t.Fatal(err)
	}
	p.send(agentproto.THello, 0, agentproto.Hello{MinVersion: agentproto.MinVersion, MaxVersion: agentproto.MaxVersion, Token: guest.Token, Boot: 1})
	p.r = agentproto.NewReader(p.c, agentproto.MaxFromNode)
	if f, err := p.r.Read(); err != nil || f.Type != agentproto.TWelcome {
		t.Fatalf("frame %+v, %v", f, err)
	}
	return p
}

// send sends a frame; the hub may have closed the connection.
func (p *peer) send(t agentproto.Type, id uint64, m interface{ Append([]byte) []byte }) {
	_, _ = p.c.Write(agentproto.AppendFrame(nil, agentproto.Frame{Type: t, ID: id, Payload: m.Append(nil)}))
}
