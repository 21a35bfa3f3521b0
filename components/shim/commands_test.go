package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	runc "github.com/containerd/go-runc"
)

// ran is a monitor that runs nothing, and remembers what it was to run.
type ran struct{ lines []string }

func (r *ran) Start(cmd *exec.Cmd) (chan runc.Exit, error) {
	r.lines = append(r.lines, strings.Join(cmd.Args, " "))
	cmd.Process = &os.Process{}
	return nil, nil
}

func (*ran) Wait(*exec.Cmd, chan runc.Exit) (int, error) { return 0, nil }

func TestParseCommand(t *testing.T) {
	for line, want := range map[string]command{
		"runsc --root=/r --log=/l create --bundle /b --pid-file /p id": {"create", "id", 3},
		"runsc state id":             {"state", "id", 1},
		"runsc --x kill --all id 9":  {"kill", "id", 2},
		"runsc kill id 9":            {"kill", "id", 1},
		"runsc --root=/r --x=wait":   {},
		"runsc list":                 {"list", "", 1},
		"runsc":                      {},
		"runsc --a=b wait --pid 3 x": {"wait", "x", 2},
	} {
		if got := parseCommand(strings.Fields(line)); got != want {
			t.Errorf("%s: %+v, want %+v", line, got, want)
		}
	}
}

func TestKnownStateNeedsNoRunsc(t *testing.T) {
	e := newExits()
	eager := &container{bundle: "/b", first: true, eager: true}
	later := &container{first: true, sandbox: e.expect(20), state: "created"}
	joined := &container{}
	containers := map[string]*container{"eager": eager, "later": later, "joined": joined}
	next := &ran{}
	m := &commands{next: next, container: func(id string) *container { return containers[id] }}

	// run does a command as gVisor's shim does; started says whether there was something to run.
	run := func(line string) (out map[string]any, started bool) {
		t.Helper()
		var b bytes.Buffer
		cmd := exec.Command("runsc")
		cmd.Args, cmd.Stdout = strings.Fields(line), &b
		before := len(next.lines)
		ch, err := m.Start(cmd)
		if err != nil {
			t.Fatal(err)
		}
		if status, err := m.Wait(cmd, ch); status != 0 || err != nil {
			t.Fatalf("%s: %d, %v", line, status, err)
		}
		if b.Len() > 0 {
			if err := json.Unmarshal(b.Bytes(), &out); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
		return out, len(next.lines) > before
	}
	status := func(id, want string) {
		t.Helper()
		out, started := run("runsc state " + id)
		if started || out["status"] != want {
			t.Errorf("state of %s: %v, want %s", id, out, want)
		}
	}

	if _, started := run("runsc --x create --bundle /b eager"); !started || next.lines[len(next.lines)-1] != "runsc --x run --detach --bundle /b eager" {
		t.Errorf("eager create: %v", next.lines)
	}
	eager.sandbox, eager.state = e.expect(10), "created"
	status("eager", "created")
	if _, started := run("runsc start eager"); started {
		t.Error("start of an eager container was run")
	}
	status("eager", "running")

	if _, started := run("runsc create --bundle /b later"); !started || strings.Contains(next.lines[len(next.lines)-1], "detach") {
		t.Errorf("create: %v", next.lines)
	}
	if _, started := run("runsc start later"); !started {
		t.Error("start was not run")
	}
	status("later", "running")
	if _, started := run("runsc pause later"); !started {
		t.Error("pause was not run")
	}
	status("later", "paused")
	if _, started := run("runsc kill --all later 9"); !started {
		t.Error("kill of a running container was not run")
	}
	e.recordEnd(20, 137)
	status("later", "stopped")
	if out, started := run("runsc wait later"); started || out["exitStatus"] != 137.0 {
		t.Errorf("wait: %v", out)
	}
	if _, started := run("runsc kill --all later 9"); started {
		t.Error("kill of an ended container was run")
	}
	for _, line := range []string{"runsc state joined", "runsc wait joined", "runsc start joined", "runsc state unknown", "runsc delete eager"} {
		if _, started := run(line); !started {
			t.Errorf("%s was not run", line)
		}
	}
}
