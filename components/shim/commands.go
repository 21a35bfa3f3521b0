package main

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"

	runc "github.com/containerd/go-runc"
	"gvisor.dev/gvisor/pkg/shim/v1/runsccmd"
)

// commands stands between gVisor's shim and the runsc commands it runs. Each costs the start of a large program, and
// for the first container of a sandbox most are not needed, because the shim knows the answer:
//
//   - state: what was done with the container, and whether the process of the sandbox has ended;
//   - wait: how the process of the sandbox ended (exits.go). A `runsc wait` would run for as long as the sandbox;
//   - kill, when the sandbox has ended: nothing;
//   - create and start, of a container that is to be started when it is created: `runsc run --detach` for both.
//
// All others run as they are. A command that is answered has no process.
type commands struct {
	next      runsccmd.ProcessMonitor
	container func(id string) *container // nil: not known
}

// command is one runsc command line.
type command struct {
	name, id string
	at       int // index of name in the arguments
}

// parseCommand takes a command line of gVisor's shim apart: flags of runsc, of which none has its value in an argument
// of its own; a name; more flags; the id of a container, and after it the signal for kill.
func parseCommand(args []string) command {
	c := command{at: 1}
	for c.at < len(args) && strings.HasPrefix(args[c.at], "-") {
		c.at++
	}
	if c.at >= len(args) {
		return command{}
	}
	c.name = args[c.at]
	last := len(args) - 1
	if c.name == "kill" {
		last--
	}
	if last > c.at {
		c.id = args[last]
	}
	return c
}

// answered reports that the command need not run.
func (c *container) answered(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sandbox == nil {
		return false
	}
	switch name {
	case "state", "wait":
		return true
	case "kill":
		return c.sandbox.hasEnded()
	case "start":
		return c.eager
	}
	return false
}

// Start implements runsccmd.ProcessMonitor.
func (m *commands) Start(cmd *exec.Cmd) (chan runc.Exit, error) {
	line := parseCommand(cmd.Args)
	if c := m.container(line.id); c != nil {
		if c.answered(line.name) {
			return nil, nil
		}
		if line.name == "create" && c.eager {
			cmd.Args = slices.Replace(slices.Clone(cmd.Args), line.at, line.at+1, "run", "--detach")
		}
	}
	return m.next.Start(cmd)
}

// Wait implements runsccmd.ProcessMonitor.
func (m *commands) Wait(cmd *exec.Cmd, ch chan runc.Exit) (int, error) {
	line := parseCommand(cmd.Args)
	c := m.container(line.id)
	if cmd.Process == nil {
		return 0, c.answer(line, cmd)
	}
	status, err := m.next.Wait(cmd, ch)
	if err == nil && status == 0 && c != nil {
		c.updateState(line.name)
	}
	return status, err
}

// updateState updates the state after a command that succeeded.
func (c *container) updateState(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch name {
	case "start", "restore", "resume":
		c.state = "running"
	case "pause":
		c.state = "paused"
	}
}

// answer gives the result that runsc would give. answered has decided that this
// is possible.
func (c *container) answer(line command, cmd *exec.Cmd) error {
	c.mu.Lock()
	sandbox, state := c.sandbox, c.state
	c.mu.Unlock()
	switch line.name {
	case "start":
		c.updateState(line.name)
	case "state":
		if sandbox.hasEnded() {
			state = "stopped"
		}
		return json.NewEncoder(cmd.Stdout).Encode(map[string]any{"id": line.id, "pid": sandbox.pid, "status": state, "bundle": c.bundle})
	case "wait":
		<-sandbox.ended
		return json.NewEncoder(cmd.Stdout).Encode(map[string]any{"id": line.id, "exitStatus": sandbox.status})
	}
	return nil
}
