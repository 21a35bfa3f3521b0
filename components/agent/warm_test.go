package agent_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// A warm-up executes something in the sandbox, of which nothing is to be seen but its pid, and a claim works after it.
func TestWarmLeavesNoTrace(t *testing.T) {
	e := inGvisor
	e.need(t)
	f := newFixture(t, e, agent.GuestConfig{Claimable: true, PIDs: 60, Env: []string{"A=1"}})
	pid := func() int {
		t.Helper()
		n, err := strconv.Atoi(strings.TrimSpace(f.sh("echo $$").out))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before, hosts := pid(), f.sh("cat /etc/hosts /etc/hostname").out
	used := time.Now()
	if err := f.conn.Warm(f.ctx()); err != nil {
		t.Fatal(err)
	}
	since := time.Since(used)
	a, err := f.conn.Activity(f.ctx())
	if err != nil || a.Idle < since || a.Processes+a.Connections != 0 {
		t.Errorf("%s after the last use: %+v, %v", since, a, err)
	}
	if list, err := f.conn.Processes(f.ctx()); err != nil || len(list) > 0 {
		t.Errorf("processes: %+v, %v", list, err)
	}
	if got := f.sh("cat /etc/hosts /etc/hostname").out; got != hosts {
		t.Errorf("files were %q, are %q", hosts, got)
	}
	if after := pid(); after < before+3 { // cat, and the shell that started it
		t.Errorf("pid %d follows %d: nothing was executed", after, before)
	}
	if lines := f.lines(execution.LogQuery{}); len(lines) > 0 {
		t.Errorf("logged: %+v", lines)
	}
	if err := f.conn.Configure(f.ctx(), execution.Identity{Claim: "c", Hostname: "named"}); err != nil {
		t.Fatal(err)
	}
	if r := f.sh("hostname"); r.out != "named\n" {
		t.Errorf("%+v", r)
	}
}

// An agent that does not know warm-ups refuses them at once.
func TestOldAgentRefusesWarm(t *testing.T) {
	p := newPeer(t)
	go func() {
		for f, ok := p.await(agentproto.TOpen); ok; f, ok = p.await(agentproto.TOpen) {
			p.send(agentproto.TDone, f.ID, agentproto.Done{Failure: agentproto.Failure{Kind: agentproto.Unsupported, Message: "not known here"}})
		}
	}()
	began := time.Now()
	c, err := p.hub.Conn(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Warm(t.Context()); !errs.Is(err, errs.Unimplemented) || time.Since(began) > wait.Limit {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}
