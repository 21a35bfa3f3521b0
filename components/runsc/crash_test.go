package runsc_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/runsc"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/testsupport/private"
	"miren.dev/runtime/testsupport/runsctest"
	"miren.dev/runtime/testsupport/wait"
)

type machine struct{ *runsctest.Machine }

func (m machine) spec(id string, command ...string) execution.Spec {
	return execution.Spec{
		ID: id, Image: m.Image, Command: append([]string{"/bin/guest"}, command...), Network: execution.NetworkBridge,
		CPUMillis: 2000, MemoryBytes: 128 << 20, PIDs: 64, DiskBytes: 64 << 20,
	}
}

func (m machine) ensure(t *testing.T, s execution.Spec) execution.Instance {
	t.Helper()
	in, err := m.Driver.Ensure(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if in.Phase != execution.Running {
		t.Fatalf("%s is %s, not running", s.ID, in.Phase)
	}
	return in
}

func (m machine) delete(t *testing.T, id string) {
	t.Helper()
	if err := m.Driver.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Driver.Get(t.Context(), id); !errs.Is(err, errs.NotFound) {
		t.Errorf("Get after Delete: %v", err)
	}
	if _, err := os.Lstat(m.Driver.ShimSocket(id)); !os.IsNotExist(err) {
		t.Errorf("socket of the shim is left: %v", err)
	}
	if files, err := m.Driver.RunscFiles(id); err != nil || len(files) > 0 {
		t.Errorf("runsc keeps %q, %v", files, err)
	}
	if err := m.Driver.DeleteLogs(t.Context(), id); err != nil {
		t.Error(err)
	}
}

func get(address string) error {
	c := http.Client{Timeout: 2 * time.Second}
	defer c.CloseIdleConnections()
	res, err := c.Get("http://" + address + ":80/")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return err
}

func (m machine) exec(ctx context.Context, id string) error {
	p, err := m.Driver.Exec(ctx, id, execution.ExecSpec{Command: []string{"/bin/guest", "echo", "x"}})
	if err != nil {
		return err
	}
	defer p.Close()
	go io.Copy(io.Discard, p.Stdout())
	go io.Copy(io.Discard, p.Stderr())
	code, err := p.Wait(ctx)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d", code)
	}
	return err
}

// kill kills a process with SIGKILL and waits until it is gone.
func kill(t *testing.T, pid int) {
	t.Helper()
	rec, err := proc.Identify(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, "the process ends", func() error {
		if rec.Alive() {
			return fmt.Errorf("pid %d is alive", pid)
		}
		return nil
	})
}

func (m machine) containerdPID(t *testing.T) int {
	t.Helper()
	p, err := proc.Find(m.Instance.Socket("containerd", "containerd.pid"))
	if err != nil || p == nil {
		t.Fatalf("containerd does not run: %v", err)
	}
	return p.PID()
}

func (m machine) shimPID(t *testing.T, id string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(m.Driver.BundleDir(id), "shim.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func (m machine) sentryPID(t *testing.T, id string) int {
	t.Helper()
	return m.pid(t, id, "runsc-sandbox")
}

// pid returns the process of a sandbox that calls itself name.
func (m machine) pid(t *testing.T, id, name string) int {
	t.Helper()
	pids, err := m.Driver.PIDs(id)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.HasPrefix(string(b), name+"\x00") {
			return pid
		}
	}
	t.Fatalf("no %s among %v", name, pids)
	return 0
}

func (m machine) crashed(t *testing.T, id string) {
	t.Helper()
	e := m.Env()
	if exit := e.Ended(t, id); exit.Cause != execution.CauseCrash || exit.Message == "" || time.Since(exit.At).Abs() > time.Minute {
		t.Errorf("exit of %s: %+v", id, exit)
	}
}

func TestSandboxesOutliveCrashes(t *testing.T) { eachBackend(t, testSandboxesOutliveCrashes) }

func testSandboxesOutliveCrashes(t *testing.T, m machine) {
	direct := m.Backend == runsc.BackendDirect
	t.Run("containerd", func(t *testing.T) {
		in := m.ensure(t, m.spec("ctd", "serve", "80"))
		wait.NoError(t, "first answer", func() error { return get(in.Address) })
		kill(t, m.containerdPID(t))
		// Running processes do not need containerd.
		if err := get(in.Address); err != nil {
			t.Error(err)
		}
		if err := m.exec(t.Context(), "ctd"); err != nil {
			t.Error(err)
		}
		wait.NoError(t, "containerd is back", func() error {
			got, err := m.Driver.Get(t.Context(), "ctd")
			if err == nil && got.Phase != execution.Running {
				err = fmt.Errorf("%+v", got)
			}
			return err
		})
		m.ensure(t, m.spec("ctd2", "serve", "80"))
		if err := get(in.Address); err != nil {
			t.Error(err)
		}
		m.delete(t, "ctd")
		m.delete(t, "ctd2")
	})
	t.Run("containerd while creating", func(t *testing.T) {
		for i := range 6 {
			s := m.spec(fmt.Sprint("creating-", i), "serve", "80")
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = m.Driver.Ensure(t.Context(), s) })
			// At a different moment each time, which is the purpose.
			select {
			case <-time.After(time.Duration(i) * 20 * time.Millisecond):
			case <-t.Context().Done():
			}
			kill(t, m.containerdPID(t))
			wg.Wait()
			wait.NoError(t, "second attempt", func() error {
				in, err := m.Driver.Ensure(t.Context(), s)
				if err == nil && in.Phase != execution.Running {
					err = fmt.Errorf("%+v %+v", in, in.Exit)
				}
				return err
			})
			if err := m.exec(t.Context(), s.ID); err != nil {
				t.Error(err)
			}
			m.delete(t, s.ID)
		}
	})
	t.Run("sentry", func(t *testing.T) {
		m.ensure(t, m.spec("sentry", "sleep"))
		kill(t, m.sentryPID(t, "sentry"))
		m.crashed(t, "sentry")
		m.delete(t, "sentry")
	})
	t.Run("gofer", func(t *testing.T) {
		m.ensure(t, m.spec("gofer", "sleep"))
		kill(t, m.pid(t, "gofer", "runsc-gofer"))
		m.crashed(t, "gofer")
		m.delete(t, "gofer")
	})
	if !direct {
		t.Run("shim", func(t *testing.T) {
			m.ensure(t, m.spec("shim", "sleep"))
			kill(t, m.shimPID(t, "shim"))
			m.crashed(t, "shim")
			m.delete(t, "shim")
		})
	}
	t.Run("everything at once", func(t *testing.T) {
		m.ensure(t, m.spec("all", "sleep"))
		ctd, sentry := m.containerdPID(t), m.sentryPID(t, "all")
		kill(t, ctd)
		if !direct {
			kill(t, m.shimPID(t, "all"))
		}
		kill(t, sentry)
		m.crashed(t, "all")
		m.delete(t, "all")
	})
	t.Run("while the server is away", func(t *testing.T) {
		m.ensure(t, m.spec("away-1", "sleep"))
		m.ensure(t, m.spec("away-2", "sleep"))
		left := m.ensure(t, m.spec("away-3", "serve", "80"))
		wait.NoError(t, "first answer", func() error { return get(left.Address) })
		ctd, first, sentry := m.containerdPID(t), 0, m.sentryPID(t, "away-2")
		if direct {
			first = m.pid(t, "away-1", "runsc-gofer")
		} else {
			first = m.shimPID(t, "away-1")
		}
		m.Stop()
		if err := m.Driver.Close(); err != nil {
			t.Error(err)
		}
		kill(t, ctd)
		kill(t, first)
		kill(t, sentry)
		if err := get(left.Address); err != nil {
			t.Error(err)
		}
		if err := m.Containerd.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		m.Start(t)
		m.crashed(t, "away-1")
		m.crashed(t, "away-2")
		if in, err := m.Driver.Get(t.Context(), "away-3"); err != nil || in.Phase != execution.Running {
			t.Errorf("Get = %+v, %v", in, err)
		}
		for _, id := range []string{"away-1", "away-2", "away-3"} {
			m.delete(t, id)
		}
	})
	t.Run("deleted while containerd is away", func(t *testing.T) {
		m.ensure(t, m.spec("gone", "sleep"))
		kill(t, m.containerdPID(t))
		wait.NoError(t, "delete", func() error { return m.Driver.Delete(t.Context(), "gone") })
		m.delete(t, "gone")
	})
}

// TestLeftCommand: a command of runsc that a killed shim left behind does not go
// on, and what it has made is taken away.
func TestLeftCommand(t *testing.T) { eachBackend(t, testLeftCommand) }

func testLeftCommand(t *testing.T, m machine) {
	if err := os.MkdirAll(m.Driver.RunscDir(), 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.Driver.RunscDir(), "runsc-left.sandbox.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if files, err := m.Driver.RunscFiles("left"); err != nil || len(files) != 1 {
		t.Fatalf("before: %q, %v", files, err)
	}
	command := func(id string) *exec.Cmd {
		// Up to its control group, like an interrupted set-up.
		if err := m.Driver.SetUp(t.Context(), m.spec(id, "sleep"), 2); err != nil {
			t.Fatal(err)
		}
		file, err := m.Driver.HelpersFile(id)
		if err != nil {
			t.Fatal(err)
		}
		c := exec.Command("/bin/sh", "-c", "echo 0 >"+file+" && read it")
		if _, err := c.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		wait.NoError(t, "the command joins the group", func() error {
			if pids, err := m.Driver.Helpers(id); err != nil || !slices.Contains(pids, c.Process.Pid) {
				return fmt.Errorf("%v, %v", pids, err)
			}
			return nil
		})
		return c
	}
	ours, other := command("left"), command("other")
	m.delete(t, "left")
	if err := ours.Wait(); err == nil || ours.ProcessState.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Errorf("the command ended with %v", err)
	}
	if rec, err := proc.Identify(other.Process.Pid); err != nil || !rec.Alive() {
		t.Errorf("that of another sandbox ended: %v", err)
	}
	if err := other.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = other.Wait()
	m.delete(t, "other")
}

// TestShimSockets: the socket of a shim is in the directory that can be listed,
// and a left one is swept.
func TestShimSockets(t *testing.T) {
	m := machine{runsctest.NewWith(t, runsc.BackendContainerd)}
	m.ensure(t, m.spec("alive", "sleep"))
	if st, err := os.Lstat(m.Driver.ShimSocket("alive")); err != nil || st.Mode()&os.ModeSocket == 0 {
		t.Errorf("the shim's socket: %v, %v", st, err)
	}
	for _, name := range []string{"left.sandbox", "buildstep"} {
		if err := os.WriteFile(filepath.Join(m.Driver.ShimSocketDir(), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.Restart(t)
	all, err := m.Driver.List(t.Context())
	if err != nil || len(all) != 2 {
		t.Errorf("List = %+v, %v", all, err)
	}
	m.delete(t, "left")
	m.delete(t, "alive")
	if left, err := os.ReadDir(m.Driver.ShimSocketDir()); err != nil || len(left) > 0 {
		t.Errorf("sockets that are left: %v, %v", left, err)
	}
}

func TestSetupResumesAfterEveryStep(t *testing.T) { eachBackend(t, testSetupResumesAfterEveryStep) }

func testSetupResumesAfterEveryStep(t *testing.T, m machine) {
	// The server ends at every point of a set-up; the next one finishes or clears away.
	s := m.spec("resume", "serve", "80")
	full := m.Driver.Steps()
	for done := range len(full) + 1 {
		name := "nothing"
		if done > 0 {
			name = "after " + full[done-1]
		}
		t.Run(name, func(t *testing.T) {
			if err := m.Driver.SetUp(t.Context(), s, done); err != nil {
				t.Fatal(err)
			}
			m.Restart(t)
			in := m.ensure(t, s)
			wait.NoError(t, "answer", func() error { return get(in.Address) })
			all, err := m.Driver.List(t.Context())
			if err != nil || len(all) != 1 || all[0].Phase != execution.Running {
				t.Errorf("List = %+v, %v", all, err)
			}
			m.delete(t, s.ID)
		})
		t.Run(name+" stopped", func(t *testing.T) {
			if err := m.Driver.SetUp(t.Context(), s, done); err != nil {
				t.Fatal(err)
			}
			m.Restart(t)
			in, err := m.Driver.Stop(t.Context(), s.ID, time.Second)
			if done == len(full) { // it runs
				if err != nil || in.Phase != execution.Exited {
					t.Errorf("Stop = %+v, %v", in, err)
				}
			} else if !errs.Is(err, errs.NotFound) {
				t.Errorf("Stop = %+v, %v", in, err)
			}
			m.delete(t, s.ID)
		})
		t.Run(name+" deleted", func(t *testing.T) {
			if err := m.Driver.SetUp(t.Context(), s, done); err != nil {
				t.Fatal(err)
			}
			m.Restart(t)
			all, err := m.Driver.List(t.Context())
			if err != nil || len(all) != min(done, 1) {
				t.Errorf("List = %+v, %v", all, err)
			}
			m.delete(t, s.ID)
			if all, err = m.Driver.List(t.Context()); err != nil || len(all) != 0 {
				t.Errorf("List after Delete = %+v, %v", all, err)
			}
		})
	}
}

// TestCoveredNetworkNamespaces: an administrator's use of `ip netns` affects no
// running sandbox, nor its end.
func TestCoveredNetworkNamespaces(t *testing.T) {
	if !private.Run(t) {
		return
	}
	m := machine{runsctest.New(t)}
	in := m.ensure(t, m.spec("before", "serve", "80"))
	for _, args := range [][]string{{"netns", "add", "theirs"}, {"netns", "delete", "theirs"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	wait.NoError(t, "an answer", func() error { return get(in.Address) })
	if err := m.exec(t.Context(), "before"); err != nil {
		t.Error(err)
	}
	m.Restart(t)
	m.ensure(t, m.spec("after", "sleep"))
	for _, id := range []string{"before", "after"} {
		if in, err := m.Driver.Stop(t.Context(), id, time.Second); err != nil || in.Phase != execution.Exited {
			t.Errorf("Stop = %+v, %v", in, err)
		}
		m.delete(t, id)
	}
	// The end of the test shuts the driver down, and fails if anything is left.
}

// TestSandboxKeepsNoDiskInUse unmounts a disk that was mounted when a sandbox started: its device is free at once.
func TestSandboxKeepsNoDiskInUse(t *testing.T) {
	if !private.Run(t) { // sandboxes of other tests would keep it
		return
	}
	m := machine{runsctest.New(t)}
	dir := t.TempDir()
	image, mnt := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v: %s", name, args, err, out)
		}
		return string(out)
	}
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	run("truncate", "-s", "16M", image)
	run("mkfs.ext4", "-q", "-F", image)
	run("mount", "-o", "loop", image, mnt)
	m.ensure(t, m.spec("beside", "sleep"))
	run("umount", mnt)
	wait.NoError(t, "the disk is free", func() error {
		if used := run("losetup", "-j", image); used != "" { // it detaches itself when nothing uses it
			return fmt.Errorf("still in use: %s", used)
		}
		return nil
	})
	m.delete(t, "beside")
}
