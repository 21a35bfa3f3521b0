package runsc_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/runsctest"
	"miren.dev/runtime/testsupport/wait"
)

// fork is a sandbox that is restored from the snapshot "image" of one of machine.spec.
func fork(id string) execution.Spec {
	return execution.Spec{ID: id, Restore: "image", Network: execution.NetworkBridge, CPUMillis: 2000, MemoryBytes: 128 << 20}
}

// detached starts a process that goes on in every fork.
func (m machine) detached(t *testing.T, id string, command ...string) execution.Process {
	t.Helper()
	x := guest(command...)
	x.Detached = true
	p, err := m.Driver.Exec(t.Context(), id, x)
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	return p
}

// told is a line of the program "generations".
type told struct {
	number                            int
	id, memory, fresh, token, address string
}

// generations waits until the program "generations" has written n lines, and returns them; nil for "none".
func (m machine) generations(t *testing.T, id string, n int) (lines []*told) {
	t.Helper()
	wait.NoError(t, fmt.Sprintf("%s was told %d times", id, n), func() error {
		lines = nil
		text, ok := m.Env().Try(t, id, guest("read", "/tmp/generations"))
		for line := range strings.Lines(text) {
			f := strings.Fields(line)
			if len(f) == 1 && f[0] == "none" {
				lines = append(lines, nil)
				continue
			}
			if len(f) != 6 {
				return fmt.Errorf("%q", line)
			}
			number, err := strconv.Atoi(f[0])
			if err != nil {
				return err
			}
			lines = append(lines, &told{number, f[1], f[2], f[3], f[4], f[5]})
		}
		if !ok || len(lines) < n {
			return fmt.Errorf("%q", text)
		}
		return nil
	})
	if len(lines) > n {
		t.Errorf("%s was told %d times, not %d: %+v", id, len(lines), n, lines)
	}
	return lines
}

// TestProgramsKnowTheirGeneration: a program learns that it continues from a snapshot, and so that what it has in memory may
// be wrong: the state of a generator, credentials, addresses, leases. File locks are each fork's own.
func TestProgramsKnowTheirGeneration(t *testing.T) {
	m := machine{runsctest.New(t)}
	e := m.Env()
	origin := m.spec("origin")
	origin.Command, origin.Idle, origin.ReadOnlyRoot, origin.Env, origin.Hostname = nil, true, true, []string{"TOKEN=old"}, "box"
	at := map[string]string{"origin": m.ensure(t, origin).Address}
	m.detached(t, "origin", "generations", "/tmp/generations")
	first := m.generations(t, "origin", 1)[0]
	if first == nil || first.number != 1 || len(first.id) != 32 || first.token != "old" || first.address != at["origin"] {
		t.Fatalf("first generation: %+v", first)
	}
	holder := m.detached(t, "origin", "hold", "/tmp/lock")
	locks := func(id, want string) {
		t.Helper()
		wait.NoError(t, "locks of "+id, func() error {
			if got, ok := e.Try(t, id, guest("try-lock", "/tmp/lock")); !ok || strings.TrimSpace(got) != want {
				return fmt.Errorf("%q, want %q", got, want)
			}
			return nil
		})
	}
	const held, free = "flock=true posix=true", "flock=false posix=false"
	locks("origin", held)
	bootID := guest("read", "/proc/sys/kernel/random/boot_id")
	boot := e.Output(t, "origin", bootID)
	m.snapshot(t, "origin", "image", true)

	seen := map[string]bool{first.id: true, first.fresh: true}
	memory := ""
	for _, id := range []string{"fork-0", "fork-1"} {
		f := fork(id)
		f.Env, f.Hostname = []string{"TOKEN=new"}, "box"
		at[id] = m.ensure(t, f).Address
		lines := m.generations(t, id, 3)
		now := lines[2]
		if *lines[0] != *first || lines[1] != nil || now == nil || now.number != 2 {
			t.Fatalf("generations of %s: %+v", id, lines)
		}
		for _, once := range []string{now.id, now.fresh} {
			if seen[once] {
				t.Errorf("%s of %s was there before", once, id)
			}
			seen[once] = true
		}
		// What a process had in memory is the same in all forks.
		if memory != "" && now.memory != memory {
			t.Errorf("generators in memory: %s and %s", memory, now.memory)
		}
		memory = now.memory
		if now.token != "old" || now.address != at["origin"] {
			t.Errorf("in the memory of %s: %+v", id, now)
		}
		// What is asked for anew is the fork's.
		if env := e.Output(t, id, guest("env")); !strings.Contains(env, "TOKEN=new\n") {
			t.Errorf("environment of %s: %s", id, env)
		}
		if got := strings.TrimSpace(e.Output(t, id, guest("lookup", "box"))); got != at[id] {
			t.Errorf("%s has the address %s in its own eyes, not %s", id, got, at[id])
		}
		x := guest("read", agentproto.GuestGeneration)
		x.User = "app"
		if got := e.Output(t, id, x); got != fmt.Sprintf("%d %s\n", now.number, now.id) {
			t.Errorf("generation of %s: %q", id, got)
		}
		if got := e.Output(t, id, bootID); got != boot {
			t.Errorf("boot id of %s: %q, not that of its memory, %q", id, got, boot)
		}
		locks(id, held)
	}
	if at["origin"] == at["fork-0"] || at["fork-0"] == at["fork-1"] {
		t.Errorf("addresses: %v", at)
	}
	if lines := m.generations(t, "origin", 3); *lines[0] != *first || lines[1] != nil || lines[2].number != 1 || lines[2].id != first.id {
		t.Errorf("generations of the sandbox that went on: %+v", lines)
	}
	p, err := m.Driver.Attach(t.Context(), "fork-0", holder.ID(), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	locks("fork-0", free)
	locks("fork-1", held)
	locks("origin", held)

	m.snapshot(t, "fork-0", "later", false)
	again := fork("fork-0")
	again.Restore, again.Hostname = "later", "box"
	m.ensure(t, again)
	if lines := m.generations(t, "fork-0", 5); lines[3] != nil || lines[4].number != 3 || seen[lines[4].id] {
		t.Errorf("generations of a resumed sandbox: %+v", lines)
	}
	for id := range at {
		m.delete(t, id)
	}
	m.deleteSnapshots(t)
}

// TestForkOfAClaimedSandbox: a fork has its own name although a claim had given the kernel another, and no process may
// change it. A resumed sandbox keeps the claim's name.
func TestForkOfAClaimedSandbox(t *testing.T) {
	m := machine{runsctest.New(t)}
	e := m.Env()
	warm := m.spec("warm")
	warm.Command, warm.Idle = nil, true
	m.ensure(t, warm)
	if err := m.Driver.Configure(t.Context(), "warm", execution.Identity{Claim: "c", Hostname: "claimed"}); err != nil {
		t.Fatal(err)
	}
	named := func(in execution.Instance, name string) {
		t.Helper()
		if got := e.Output(t, in.ID, guest("id")); !strings.Contains(got, " host="+name+" ") {
			t.Errorf("%s: %s", in.ID, got)
		}
		if got := e.Output(t, in.ID, guest("read", "/etc/hostname")); got != name+"\n" {
			t.Errorf("/etc/hostname of %s: %q", in.ID, got)
		}
		hosts := e.Output(t, in.ID, guest("read", "/etc/hosts"))
		if !strings.Contains(hosts, "\n"+in.Address+"\t"+name+"\n") || strings.Count(hosts, "\t"+name+"\n") != 1 {
			t.Errorf("/etc/hosts of %s: %q", in.ID, hosts)
		}
		status := e.Output(t, in.ID, guest("read", "/proc/1/status"))
		if _, caps, _ := strings.Cut(status, "CapPrm:\t"); !strings.HasPrefix(caps, "00000000000000e3\n") {
			t.Errorf("capabilities of the agent of %s: %s", in.ID, status)
		}
	}
	m.snapshot(t, "warm", "image", true)
	named(m.ensure(t, fork("fork")), "fork")
	m.snapshot(t, "fork", "second", true)
	of := fork("of-fork")
	of.Restore = "second"
	named(m.ensure(t, of), "of-fork")
	m.snapshot(t, "warm", "paused", false)
	warm.Restore = "paused"
	in := m.ensure(t, warm)
	named(in, "claimed")
	for _, id := range []string{"warm", "fork", "of-fork"} {
		m.delete(t, id)
	}
	m.deleteSnapshots(t)
}

// TestClocksAfterAPause: wall time and monotonic time go on while a sandbox is paused, so timers of both whose time has come
// meanwhile fire at once.
func TestClocksAfterAPause(t *testing.T) {
	m := machine{runsctest.New(t)}
	const seconds = 8
	s := m.spec("clocks", "clocks", "/tmp/clocks", strconv.Itoa(seconds))
	m.ensure(t, s)
	var start, wall, mono, wallTimer, wallTimerMono, monoTimer, monoTimerMono int64 // milliseconds
	read := func() error {
		text, _ := m.Env().Try(t, s.ID, guest("read", "/tmp/clocks"))
		_, err := fmt.Sscan(text, &start, &wall, &mono, &wallTimer, &wallTimerMono, &monoTimer, &monoTimerMono)
		return err
	}
	wait.NoError(t, "the program reads its clocks", read)
	m.snapshot(t, s.ID, "image", false)
	if time.Since(time.UnixMilli(start)) >= seconds*time.Second {
		t.Fatalf("the pause begins after the %d s of the timers", seconds)
	}
	<-time.After(time.Until(time.UnixMilli(start).Add((seconds + 2) * time.Second))) // the pause itself
	resumed := time.Now()
	s.Restore = "image"
	m.ensure(t, s)
	wait.NoError(t, "the timers fire", func() error {
		if err := read(); err != nil || wallTimer < 0 || monoTimer < 0 {
			return fmt.Errorf("%d, %d, %v", wallTimer, monoTimer, err)
		}
		return nil
	})
	least := resumed.UnixMilli() - start
	for name, at := range map[string]int64{
		"wall time": wall, "monotonic time": mono, "wall time of the timer by it": wallTimer, "monotonic time of that timer": wallTimerMono,
		"wall time of the timer by monotonic time": monoTimer, "monotonic time of that one": monoTimerMono,
	} {
		if at < least-50 { // the two clocks are not read at the same moment
			t.Errorf("%s: after %d ms; the sandbox was resumed after %d", name, at, least)
		}
	}
	m.delete(t, s.ID)
	m.deleteSnapshots(t)
}

// numbers is one connection to the program "stream".
type numbers struct {
	net.Conn
	in   *bufio.Scanner
	last int // received
}

func listenTo(t *testing.T, address string) *numbers {
	t.Helper()
	c, err := net.DialTimeout("tcp", net.JoinHostPort(address, "80"), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetReadDeadline(time.Now().Add(wait.Limit)); err != nil {
		t.Fatal(err)
	}
	return &numbers{Conn: c, in: bufio.NewScanner(c)}
}

// next receives a number greater than the last.
func (n *numbers) next() error {
	if !n.in.Scan() {
		return fmt.Errorf("no number after %d: %v", n.last, n.in.Err())
	}
	got, err := strconv.Atoi(n.in.Text())
	if err == nil && got <= n.last {
		err = fmt.Errorf("%d after %d", got, n.last)
	}
	n.last = got
	return err
}

// TestConnectionsToTheOutside: a connection goes on in a sandbox that a snapshot leaves running and is closed in its fork.
// What a sandbox sent before a pause it does not send again.
func TestConnectionsToTheOutside(t *testing.T) {
	m := machine{runsctest.New(t)}
	s := m.spec("stream", "stream", "80", "/tmp/connections")
	in := m.ensure(t, s)
	wait.For(t, "the program listens", func() bool {
		ports, err := m.Driver.Listening(t.Context(), s.ID)
		return err == nil && len(ports) == 1
	})
	out := listenTo(t, in.Address)
	if err := out.next(); err != nil {
		t.Fatal(err)
	}
	m.snapshot(t, s.ID, "image", true)
	m.ensure(t, fork("fork"))
	connections := func(id, want string) {
		t.Helper()
		wait.NoError(t, "connections of "+id, func() error {
			if got, ok := m.Env().Try(t, id, guest("read", "/tmp/connections")); !ok || got != want {
				return fmt.Errorf("%q, want %q", got, want)
			}
			return nil
		})
	}
	connections("fork", "open=0 closed=1")
	connections(s.ID, "open=1 closed=0")
	m.delete(t, "fork")
	now := listenTo(t, in.Address) // what it receives was not under way before
	if err := now.next(); err != nil {
		t.Fatal(err)
	}
	for out.last < now.last {
		if err := out.next(); err != nil {
			t.Fatalf("on the connection that goes on: %v", err)
		}
	}
	now.Close()

	for round := range 3 {
		snap := fmt.Sprint("pause-", round)
		received := make(chan int)
		go func() {
			for out.next() == nil {
			}
			received <- out.last
		}()
		m.snapshot(t, s.ID, snap, false)
		if err := out.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil { // for what is under way
			t.Error(err)
		}
		last := <-received
		s.Restore = snap
		out = listenTo(t, m.ensure(t, s).Address)
		out.last = last
		if err := out.next(); err != nil {
			t.Errorf("round %d: what was sent before the pause is sent again: %v", round, err)
		}
	}
	m.delete(t, s.ID)
	m.deleteSnapshots(t)
}

// TestPauseWritesNothingTwice: a volume is not in the snapshot, so a sandbox does not run on after its memory was saved: what
// it wrote then to the volume it would write again.
func TestPauseWritesNothingTwice(t *testing.T) {
	m := machine{runsctest.New(t)}
	s := m.spec("writer", "line-up", "/data/lines")
	s.Mounts = []execution.Mount{{Source: t.TempDir(), Target: "/data"}}
	m.ensure(t, s)
	lines := func() []string {
		b, err := os.ReadFile(filepath.Join(s.Mounts[0].Source, "lines"))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Fields(string(b))
	}
	more := func() {
		t.Helper()
		n := len(lines())
		wait.For(t, "the sandbox writes", func() bool { return len(lines()) > n+10 })
	}
	more()
	for round := range 4 {
		snap := fmt.Sprint("pause-", round)
		if round == 2 { // a pause that fails
			if err := unix.Mount("tmpfs", m.Instance.State("snapshots"), "tmpfs", 0, "size=512k"); err != nil {
				t.Fatal(err)
			}
			_, err := m.Driver.Snapshot(t.Context(), s.ID, snap, execution.SnapshotOptions{})
			if uerr := unix.Unmount(m.Instance.State("snapshots"), unix.MNT_DETACH); uerr != nil {
				t.Fatal(uerr)
			}
			if !errs.Is(err, errs.ResourceExhausted) {
				t.Errorf("Snapshot on a full disk: %v", err)
			}
		} else {
			m.snapshot(t, s.ID, snap, false)
			s.Restore = snap
			m.ensure(t, s)
		}
		more()
	}
	for i, line := range lines() {
		if line != strconv.Itoa(i+1) {
			t.Fatalf("line %d is %s", i+1, line)
		}
	}
	m.delete(t, s.ID)
	m.deleteSnapshots(t)
}

// TestMainEndsWhileSuspended: a main process that ends when a snapshot begins has ended in each sandbox that continues from
// it, with its output and its exit code.
func TestMainEndsWhileSuspended(t *testing.T) {
	m := machine{runsctest.New(t)}
	for _, leave := range []bool{true, false} {
		s := m.spec("ends", "end-suspended", "7")
		m.ensure(t, s)
		wait.For(t, "the program waits", func() bool { return len(m.logText(t, s.ID)) == 1 })
		m.snapshot(t, s.ID, "image", leave)
		ids := []string{s.ID, "fork"}
		if !leave {
			s.Restore, ids = "image", ids[:1]
			if _, err := m.Driver.Ensure(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		} else if _, err := m.Driver.Ensure(t.Context(), fork("fork")); err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			if exit := m.Env().Ended(t, id); exit.Code != 7 || exit.Cause != execution.CauseExit {
				t.Errorf("%s of a snapshot with leave=%t: %+v", id, leave, exit)
			}
			if lines := m.logText(t, id); len(lines) == 0 || lines[len(lines)-1] != "suspended" {
				t.Errorf("log of %s with leave=%t: %q", id, leave, lines)
			}
			m.delete(t, id)
		}
		m.deleteSnapshots(t)
	}
}
