package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/testsupport/wait"
)

// TestSuspendedAgentLetsGo: nothing outside the sandbox is open while an agent is suspended, and nothing is lost.
func TestSuspendedAgentLetsGo(t *testing.T) {
	e := asProcess
	e.need(t)
	f := newFixture(t, e, agent.GuestConfig{Command: []string{"sh", "-c", "i=0; while [ $i -lt 40 ]; do echo $i; i=$((i+1)); sleep 0.01; done"}})
	f.begin()
	f.carry(func() {
		if err := f.hub.Suspend(f.ctx(), id); err != nil {
			t.Fatal(err)
		}
		if open := f.outside(); len(open) > 0 {
			t.Errorf("open while suspended: %q", open)
		}
		if f.conn.Connected() {
			t.Error("the agent is connected while suspended")
		}
		if err := f.hub.Readmit(id); err != nil {
			t.Fatal(err)
		}
		wait.For(t, "the agent is back", f.conn.Connected)
	})
	var want []string
	for i := range 40 {
		want = append(want, fmt.Sprint("stdout ", i))
	}
	if got := f.lines(execution.LogQuery{Follow: true}); !slices.Equal(got, want) {
		t.Errorf("log: %q", got)
	}
}

// TestSuspendedAgentFindsNextHub: a server that ends while a snapshot is taken leaves an agent that the next one finds.
func TestSuspendedAgentFindsNextHub(t *testing.T) {
	e := asProcess
	e.need(t)
	f := newFixture(t, e, agent.GuestConfig{})
	if err := f.hub.Suspend(f.ctx(), id); err != nil {
		t.Fatal(err)
	}
	f.restart()
	for range 2 { // Readmit changes nothing for an agent that is not suspended
		if err := f.hub.Readmit(id); err != nil {
			t.Fatal(err)
		}
	}
	if r := f.sh("echo alive"); r.out != "alive\n" {
		t.Errorf("%+v", r)
	}
	if open := f.outside(); len(open) == 0 {
		t.Error("the log is not open again")
	}
}

// outside returns the files of the log that the agent has open.
func (f *fixture) outside() (open []string) {
	dir := fmt.Sprintf("/proc/%d/fd", f.guest.cmd.Process.Pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.HasPrefix(to, f.config.LogDir) {
			open = append(open, to)
		}
	}
	return open
}
