package runsc_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/runsc"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/runsctest"
	"miren.dev/runtime/testsupport/wait"
)

func guest(command ...string) execution.ExecSpec {
	return execution.ExecSpec{Command: append([]string{"/bin/guest"}, command...)}
}

// counted returns the count and the host name that the program "count" wrote last.
func (m machine) counted(t *testing.T, id string) (n int, host string) {
	t.Helper()
	n, host, err := m.tryCounted(t, id)
	if err != nil {
		t.Fatal(err)
	}
	return n, host
}

func (m machine) tryCounted(t *testing.T, id string) (n int, host string, err error) {
	t.Helper()
	text, ok := m.Env().Try(t, id, guest("read", "/tmp/count"))
	first, host, _ := strings.Cut(text, " ")
	if n, err = strconv.Atoi(first); !ok || err != nil {
		err = fmt.Errorf("count of %s: %q", id, text)
	}
	return n, host, err
}

// counts waits until the program "count" has written more than n.
func (m machine) counts(t *testing.T, id string, n int) {
	t.Helper()
	wait.NoError(t, "the program counts", func() error {
		got, _, err := m.tryCounted(t, id)
		if err == nil && got <= n {
			err = fmt.Errorf("%d, was %d", got, n)
		}
		return err
	})
}

func (m machine) snapshot(t *testing.T, id, snapshot string, leave bool) execution.SnapshotInfo {
	t.Helper()
	info, err := m.Driver.Snapshot(t.Context(), id, snapshot, execution.SnapshotOptions{Leave: leave})
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func (m machine) deleteSnapshots(t *testing.T) {
	t.Helper()
	list, err := m.Driver.ListSnapshots(t.Context())
	if err != nil {
		t.Error(err)
	}
	for _, s := range list {
		if err := m.Driver.DeleteSnapshot(t.Context(), s.ID); err != nil {
			t.Error(err)
		}
	}
}

// TestPauseLosesNothing pauses and resumes a sandbox again and again, also across restarts of the server.
func TestPauseLosesNothing(t *testing.T) {
	m := machine{runsctest.New(t)}
	s := m.spec("pause", "count", "/tmp/count")
	first := m.ensure(t, s)
	m.counts(t, s.ID, 3)
	before := 0
	for i := range 20 {
		m.Env().Output(t, s.ID, guest("note", "/root/notes", strconv.Itoa(i)))
		n, _ := m.counted(t, s.ID)
		if n < before {
			t.Fatalf("round %d: the count went from %d to %d", i, before, n)
		}
		before = n
		snap := fmt.Sprint("round-", i)
		m.snapshot(t, s.ID, snap, false)
		in, err := m.Driver.Get(t.Context(), s.ID)
		if err != nil || in.Phase != execution.Paused || in.Snapshot != snap || in.Address != "" {
			t.Fatalf("Get of a paused sandbox = %+v, %v", in, err)
		}
		wait.NoError(t, "the processes end", func() error {
			if pids, err := m.Driver.PIDs(s.ID); err != nil || len(pids) > 0 {
				return fmt.Errorf("%v, %v", pids, err)
			}
			return nil
		})
		if i%7 == 3 {
			m.Restart(t)
		}
		s.Restore = snap
		m.ensure(t, s)
		if i > 0 {
			if err := m.Driver.DeleteSnapshot(t.Context(), fmt.Sprint("round-", i-1)); err != nil {
				t.Error(err)
			}
		}
		if i%7 == 5 {
			m.Restart(t)
		}
	}
	m.counts(t, s.ID, before)
	var want strings.Builder
	for i := range 20 {
		fmt.Fprintln(&want, i)
	}
	if got := m.Env().Output(t, s.ID, guest("read", "/root/notes")); got != want.String() {
		t.Errorf("notes: %q", got)
	}
	list, err := m.Driver.ListSnapshots(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != "round-19" || list[0].Parent != "round-18" || list[0].Sandbox != s.ID {
		t.Errorf("ListSnapshots = %+v, %v", list, err)
	}
	in, err := m.Driver.Get(t.Context(), s.ID)
	if err != nil || in.Phase != execution.Running || in.Address == "" || first.Address == "" {
		t.Errorf("Get = %+v, %v", in, err)
	}
	m.delete(t, s.ID)
	m.deleteSnapshots(t)
}

// TestForksAreApart makes five sandboxes from one that keeps running.
func TestForksAreApart(t *testing.T) {
	m := machine{runsctest.New(t)}
	e := m.Env()
	origin := m.spec("origin", "count", "/tmp/count")
	m.ensure(t, origin)
	m.counts(t, "origin", 3)
	e.Output(t, "origin", guest("note", "/root/notes", "origin"))
	e.Output(t, "origin", guest("note", "/etc/hosts", "192.0.2.1 of-the-guest"))
	watch, err := m.Driver.Exec(t.Context(), "origin", guest("cat"))
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	at, _ := m.counted(t, "origin")
	info := m.snapshot(t, "origin", "image", true)
	if info.Bytes < 1<<20 || info.Parent != "" || info.RunscVersion == "" || info.Agent == "" || len(info.CPUFeatures) == 0 {
		t.Errorf("snapshot: %+v", info)
	}
	m.counts(t, "origin", at)
	// A process of a client keeps its connection in the sandbox that keeps running.
	if _, err := io.WriteString(watch.Stdin(), "still here"); err != nil {
		t.Error(err)
	}
	if err := watch.Stdin().Close(); err != nil {
		t.Error(err)
	}
	if out, err := io.ReadAll(watch.Stdout()); err != nil || string(out) != "still here" {
		t.Errorf("exec across the snapshot: %q, %v", out, err)
	}

	const n = 5
	var g errgroup.Group
	instances := make([]execution.Instance, n)
	for i := range n {
		g.Go(func() (err error) {
			s := execution.Spec{
				ID: fmt.Sprint("fork-", i), Restore: "image", Network: execution.NetworkBridge, Env: []string{fmt.Sprint("FORK=", i)},
				CPUMillis: 1000, MemoryBytes: 256 << 20, // not those of the origin
			}
			instances[i], err = m.Driver.Ensure(t.Context(), s)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	random, addresses, tokens := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i, in := range instances {
		id := fmt.Sprint("fork-", i)
		if in.ID != id || in.Phase != execution.Running {
			t.Errorf("instance: %+v", in)
		}
		addresses[in.Address] = true
		tokens[m.token(t, id)] = true
		m.counts(t, id, at) // it has the memory of the origin
		wait.NoError(t, "host name", func() error {
			if _, host := m.counted(t, id); host != id {
				return fmt.Errorf("%s has host name %s", id, host)
			}
			return nil
		})
		for word := range strings.FieldsSeq(e.Output(t, id, guest("random"))) {
			random[word] = true
		}
		clock, err := strconv.ParseInt(strings.TrimSpace(e.Output(t, id, guest("clock"))), 10, 64)
		if err != nil || time.Since(time.Unix(0, clock)).Abs() > 5*time.Second {
			t.Errorf("clock of %s: %d, %v", id, clock, err)
		}
		if env := e.Output(t, id, guest("env")); !strings.Contains(env, fmt.Sprint("FORK=", i)) {
			t.Errorf("environment of %s: %s", id, env)
		}
		hosts := e.Output(t, id, guest("read", "/etc/hosts"))
		if !strings.Contains(hosts, in.Address+"\t"+id+"\n") || strings.Contains(hosts, "origin") || !strings.Contains(hosts, "of-the-guest") {
			t.Errorf("/etc/hosts of %s: %q", id, hosts)
		}
		if name := e.Output(t, id, guest("read", "/etc/hostname")); name != id+"\n" {
			t.Errorf("/etc/hostname of %s: %q", id, name)
		}
		e.Output(t, id, guest("note", "/root/notes", id))
	}
	if len(random) != 2*n || len(addresses) != n || len(tokens) != n {
		t.Errorf("not all different: %v, %v, %v", random, addresses, tokens)
	}
	for i := range n {
		id := fmt.Sprint("fork-", i)
		if got := e.Output(t, id, guest("read", "/root/notes")); got != "origin\n"+id+"\n" {
			t.Errorf("notes of %s: %q", id, got)
		}
	}
	if got := e.Output(t, "origin", guest("read", "/root/notes")); got != "origin\n" {
		t.Errorf("notes of the origin: %q", got)
	}
	// Forks need neither the snapshot nor the origin, and can be forked.
	m.delete(t, "origin")
	m.deleteSnapshots(t)
	second := m.snapshot(t, "fork-0", "second", false)
	if second.Parent != "image" || second.Sandbox != "fork-0" {
		t.Errorf("second snapshot: %+v", second)
	}
	again := execution.Spec{ID: "again", Restore: "second", Network: execution.NetworkNone, CPUMillis: 2000, MemoryBytes: 128 << 20}
	m.ensure(t, again)
	if got := e.Output(t, "again", guest("read", "/root/notes")); got != "origin\nfork-0\n" {
		t.Errorf("notes: %q", got)
	}
	for i := range n {
		m.delete(t, fmt.Sprint("fork-", i))
	}
	m.delete(t, "again")
	m.deleteSnapshots(t)
}

// token returns the secret of a sandbox's agent.
func (m machine) token(t *testing.T, id string) string {
	t.Helper()
	b, err := os.ReadFile(m.Instance.Socket("agent", id, agentproto.ConfigName))
	if err != nil {
		t.Fatal(err)
	}
	c, err := agentproto.DecodeConfig(b)
	if err != nil {
		t.Fatal(err)
	}
	return c.Token
}

// TestPausedPrograms: after a resume programs and the log continue, and a server in the sandbox answers at the new address.
func TestPausedPrograms(t *testing.T) {
	m := machine{runsctest.New(t)}
	e := m.Env()
	s := m.spec("programs", "serve", "80")
	in := m.ensure(t, s)
	wait.NoError(t, "first answer", func() error { return get(in.Address) })
	p, err := m.Driver.Exec(t.Context(), s.ID, guest("count", "/tmp/count"))
	if err != nil {
		t.Fatal(err)
	}
	m.counts(t, s.ID, 3)
	at, _ := m.counted(t, s.ID)
	m.snapshot(t, s.ID, "programs", false)
	if _, err := p.Wait(t.Context()); !errs.Is(err, errs.Unavailable) {
		t.Errorf("Wait for a process of a paused sandbox: %v", err)
	}
	for name, err := range map[string]error{
		"Exec":      func() error { _, err := m.Driver.Exec(t.Context(), s.ID, guest("id")); return err }(),
		"Listening": func() error { _, err := m.Driver.Listening(t.Context(), s.ID); return err }(),
		"Stop":      func() error { _, err := m.Driver.Stop(t.Context(), s.ID, time.Second); return err }(),
	} {
		if !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(err.Error(), "paused") {
			t.Errorf("%s of a paused sandbox: %v", name, err)
		}
	}
	s.Restore = ""
	if in, err := m.Driver.Ensure(t.Context(), s); err != nil || in.Phase != execution.Paused {
		t.Errorf("Ensure of a paused sandbox = %+v, %v", in, err)
	}
	if err := m.Driver.DeleteSnapshot(t.Context(), "programs"); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("DeleteSnapshot of the snapshot of a paused sandbox: %v", err)
	}
	all, err := m.Driver.List(t.Context())
	if err != nil || len(all) != 1 || all[0].Phase != execution.Paused {
		t.Errorf("List = %+v, %v", all, err)
	}
	s.Restore = "programs"
	in = m.ensure(t, s)
	if err := get(in.Address); err != nil {
		t.Error(err)
	}
	m.counts(t, s.ID, at)
	if lines := m.logText(t, s.ID); !slices.Equal(lines, []string{"serving 80"}) {
		t.Errorf("log: %q", lines)
	}
	if out, err := m.Driver.Stop(t.Context(), s.ID, time.Second); err != nil || out.Phase != execution.Exited {
		t.Errorf("Stop = %+v, %v", out, err)
	}
	m.delete(t, s.ID)
	// A deleted sandbox is not paused any more, although its snapshot is there.
	if _, err := m.Driver.Get(t.Context(), s.ID); !errs.Is(err, errs.NotFound) {
		t.Errorf("Get: %v", err)
	}
	m.ensure(t, m.spec(s.ID, "sleep"))
	e.Output(t, s.ID, guest("id"))
	m.delete(t, s.ID)
	m.deleteSnapshots(t)
}

func (m machine) logText(t *testing.T, id string) (lines []string) {
	t.Helper()
	err := m.Driver.Logs(t.Context(), id, execution.LogQuery{}, func(l execution.LogLine) error {
		lines = append(lines, l.Text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// TestRestoredMounts: each restored sandbox has the directories that its specification names, on the targets of the
// snapshot.
func TestRestoredMounts(t *testing.T) {
	m := machine{runsctest.New(t)}
	e := m.Env()
	s := m.spec("origin", "sleep")
	s.Mounts = []execution.Mount{{Source: t.TempDir(), Target: "/data"}}
	m.ensure(t, s)
	e.Output(t, s.ID, guest("put", "/data/name", "origin"))
	m.snapshot(t, s.ID, "image", true)
	fork := execution.Spec{ID: "fork", Restore: "image", Network: execution.NetworkBridge, CPUMillis: 2000, MemoryBytes: 128 << 20}
	fork.Mounts = []execution.Mount{{Source: t.TempDir(), Target: "/data"}}
	if err := os.WriteFile(filepath.Join(fork.Mounts[0].Source, "name"), []byte("fork"), 0o644); err != nil {
		t.Fatal(err)
	}
	m.ensure(t, fork)
	for _, id := range []string{"origin", "fork"} {
		if got := strings.TrimSpace(e.Output(t, id, guest("read", "/data/name"))); got != id {
			t.Errorf("%s reads %q", id, got)
		}
		m.delete(t, id)
	}
	m.deleteSnapshots(t)
}

// TestRestoredProcesses: a client attaches again to a detached process, after a resume and in a fork; a TCP connection
// inside the sandbox goes on; a read-only root does for all of it.
func TestRestoredProcesses(t *testing.T) {
	m := machine{runsctest.New(t)}
	m.CABundle = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(m.CABundle, []byte("certificates of the company\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	m.Restart(t)
	s := m.spec("origin")
	s.Command, s.Idle, s.ReadOnlyRoot, s.Network = nil, true, true, execution.NetworkNone
	m.ensure(t, s)
	p, err := m.Driver.Exec(t.Context(), s.ID, execution.ExecSpec{Command: []string{"/bin/guest", "count", "/tmp/count"}, Detached: true})
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	sockets, err := m.Driver.Exec(t.Context(), s.ID, execution.ExecSpec{Command: []string{"/bin/guest", "pair", "/tmp/pair"}, Detached: true})
	if err != nil {
		t.Fatal(err)
	}
	sockets.Detach()
	m.counts(t, s.ID, 3)
	at, _ := m.counted(t, s.ID)
	attached := func(id string) {
		t.Helper()
		again, err := m.Driver.Attach(t.Context(), id, p.ID(), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		line := make([]byte, len("count 1\n"))
		if _, err := io.ReadFull(again.Stdout(), line); err != nil || string(line) != "count 1\n" {
			t.Errorf("output of %s from its begin: %q, %v", id, line, err)
		}
		m.counts(t, id, at)
		if err := again.Close(); err != nil {
			t.Error(err)
		}
		before := m.sent(t, id)
		wait.NoError(t, "the connection goes on", func() error {
			if n := m.sent(t, id); n <= before {
				return fmt.Errorf("%d bytes, were %d", n, before)
			}
			return nil
		})
	}
	m.snapshot(t, s.ID, "image", false)
	s.Restore = "image"
	m.ensure(t, s)
	attached(s.ID)
	fork := execution.Spec{ID: "fork", Restore: "image", Network: execution.NetworkNone, CPUMillis: 2000, MemoryBytes: 128 << 20}
	m.ensure(t, fork)
	if hosts := m.Env().Output(t, "fork", guest("read", "/etc/hosts")); !strings.Contains(hosts, "fork\n") || strings.Contains(hosts, "origin") {
		t.Errorf("hosts of the fork: %q", hosts)
	}
	attached("fork")
	m.delete(t, s.ID)
	m.delete(t, "fork")
	m.deleteSnapshots(t)
}

// sent returns how many bytes the program "pair" has sent, -1 when its connection is closed.
func (m machine) sent(t *testing.T, id string) int {
	t.Helper()
	n, err := strconv.Atoi(m.Env().Output(t, id, guest("read", "/tmp/pair")))
	if err != nil && !errors.Is(err, strconv.ErrSyntax) { // empty while it is written
		t.Fatal(err)
	}
	return n
}

// TestSnapshotRefusals: a snapshot that this node cannot restore is refused before anything is made.
func TestSnapshotRefusals(t *testing.T) {
	m := machine{runsctest.New(t)}
	m.ensure(t, m.spec("origin", "sleep"))
	m.snapshot(t, "origin", "image", true)
	fork := execution.Spec{ID: "fork", Restore: "image", Network: execution.NetworkNone, CPUMillis: 1000, MemoryBytes: 128 << 20}
	refused := func(t *testing.T, s execution.Spec, class errs.Class, says string) {
		t.Helper()
		if _, err := m.Driver.Ensure(t.Context(), s); !errs.Is(err, class) || !strings.Contains(err.Error(), says) {
			t.Errorf("Ensure: %v, want %s with %q", err, class, says)
		}
		if all, err := m.Driver.List(t.Context()); err != nil || len(all) != 1 {
			t.Errorf("List = %+v, %v", all, err)
		}
	}
	record := m.Instance.State("snapshots", "image", "info.json")
	original, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(map[string]any)
		says   string
	}{
		{"runsc", func(r map[string]any) { r["RunscVersion"] = "v0.0.0-older" }, "runsc v0.0.0-older"},
		{"CPU", func(r map[string]any) { r["CPUFeatures"] = append(r["CPUFeatures"].([]any), "zz_future") }, "zz_future"},
		{"agent", func(r map[string]any) { r["Agent"] = "agent-0123" }, "0123"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r map[string]any
			if err := json.Unmarshal(original, &r); err != nil {
				t.Fatal(err)
			}
			c.change(r)
			b, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(record, b, 0o600); err != nil {
				t.Fatal(err)
			}
			refused(t, fork, errs.FailedPrecondition, c.says)
		})
	}
	if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, fork, errs.Corrupt, "damaged")
	if list, err := m.Driver.ListSnapshots(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("ListSnapshots with a damaged one = %+v, %v", list, err)
	}
	if err := os.WriteFile(record, original, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("specification", func(t *testing.T) {
		for _, change := range []func(*execution.Spec){
			func(s *execution.Spec) { s.Image = "other" },
			func(s *execution.Spec) { s.Command = []string{"other"} },
			func(s *execution.Spec) { s.Idle = true },
			func(s *execution.Spec) { s.WorkDir = "/other" },
			func(s *execution.Spec) { s.User = "other" },
			func(s *execution.Spec) { s.PIDs = 7 },
			func(s *execution.Spec) { s.DiskBytes = 7 },
			func(s *execution.Spec) { s.ReadOnlyRoot = true },
		} {
			s := fork
			change(&s)
			refused(t, s, errs.InvalidArgument, "snapshot image")
		}
		s := fork
		s.Mounts = []execution.Mount{{Source: t.TempDir(), Target: "/data"}}
		refused(t, s, errs.InvalidArgument, "mounts")
		s = fork
		s.Restore = "none"
		refused(t, s, errs.NotFound, "no snapshot none")
		s.Restore = "../image"
		refused(t, s, errs.InvalidArgument, "id")
	})
	t.Run("snapshot", func(t *testing.T) {
		for _, c := range []struct {
			id, snapshot string
			class        errs.Class
		}{
			{"origin", "image", errs.AlreadyExists},
			{"origin", "../x", errs.InvalidArgument},
			{"none", "x", errs.NotFound},
		} {
			if _, err := m.Driver.Snapshot(t.Context(), c.id, c.snapshot, execution.SnapshotOptions{}); !errs.Is(err, c.class) {
				t.Errorf("Snapshot(%s, %s): %v, want %s", c.id, c.snapshot, err, c.class)
			}
		}
		if _, err := m.Driver.Stop(t.Context(), "origin", time.Second); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Driver.Snapshot(t.Context(), "origin", "x", execution.SnapshotOptions{}); !errs.Is(err, errs.FailedPrecondition) {
			t.Errorf("Snapshot of an ended sandbox: %v", err)
		}
	})
	m.delete(t, "origin")
	m.deleteSnapshots(t)
	if left, err := os.ReadDir(m.Instance.State("snapshots")); err != nil || len(left) > 0 {
		t.Errorf("left of snapshots: %v, %v", left, err)
	}
}

// TestFailedSnapshotHarmsNothing takes a snapshot that does not fit on the disk.
func TestFailedSnapshotHarmsNothing(t *testing.T) {
	m := machine{runsctest.New(t)}
	s := m.spec("full", "serve", "80")
	in := m.ensure(t, s)
	wait.NoError(t, "first answer", func() error { return get(in.Address) })
	dir := m.Instance.State("snapshots")
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=512k"); err != nil {
		t.Fatal(err)
	}
	_, err := m.Driver.Snapshot(t.Context(), s.ID, "image", execution.SnapshotOptions{})
	if !errs.Is(err, errs.ResourceExhausted) {
		t.Errorf("Snapshot on a full disk: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	// The sandbox's kernel keeps a file of the image open, which takes no space.
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Blocks != st.Bfree {
		t.Errorf("%d of %d blocks are free, %v", st.Bfree, st.Blocks, err)
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, "answer after it", func() error { return get(in.Address) })
	if err := m.exec(t.Context(), s.ID); err != nil {
		t.Error(err)
	}
	m.snapshot(t, s.ID, "image", false)
	s.Restore = "image"
	in = m.ensure(t, s)
	if err := get(in.Address); err != nil {
		t.Error(err)
	}
	m.delete(t, s.ID)
	m.deleteSnapshots(t)
}

func TestTasksHaveNoSnapshots(t *testing.T) {
	m := machine{runsctest.NewWith(t, runsc.BackendContainerd)}
	m.ensure(t, m.spec("task", "sleep"))
	_, err := m.Driver.Snapshot(t.Context(), "task", "image", execution.SnapshotOptions{Leave: true})
	if !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(errs.HintOf(err), runsc.BackendDirect) {
		t.Errorf("Snapshot: %v", err)
	}
	if err := m.exec(t.Context(), "task"); err != nil {
		t.Error(err)
	}
	m.delete(t, "task")
}
