// Package executiontest is the conformance suite of execution.Driver, and the
// image that it uses.
package executiontest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// Env is a machine with a driver.
type Env struct {
	// Driver is ready to use.
	Driver execution.Driver
	// Image is the reference of what Image returns, in the driver's image store.
	Image string
	// Renew closes Driver, as a server that ends does, and returns another over
	// the same sandboxes.
	Renew func(t testing.TB) execution.Driver
	// Lacks declares what the driver does not have.
	Lacks Lacks
}

// Lacks are the parts of the contract that a driver does not have. The suite tests that it refuses them, with
// Unimplemented or FailedPrecondition.
type Lacks struct {
	Policies  bool // network policies other than the open one, and their log
	Snapshots bool
	// DiskOf, if > 0, is what every sandbox may write to its disk: Spec.DiskBytes does not change it, and less is refused.
	DiskOf int64
	// SoftDisk: programs neither see Spec.DiskBytes nor meet it at once; what exceeds it ends the sandbox some time later.
	SoftDisk    bool
	Stats       bool
	ClaimLimits bool // lower limits of CPU and memory for a claim
}

// refused says whether an error is that of a part which a driver lacks.
func refused(err error) bool {
	return errs.Is(err, errs.Unimplemented) || errs.Is(err, errs.FailedPrecondition)
}

// Run tests a driver. The environment must be empty; it is empty at the end.
func Run(t *testing.T, e *Env) {
	for _, c := range []struct {
		name string
		test func(*testing.T, *Env)
	}{
		{"Life", testLife},
		{"EnsureAgain", testEnsureAgain},
		{"Exit", testExit},
		{"Stop", testStop},
		{"Exec", testExec},
		{"Idle", testIdle},
		{"Warm", testWarm},
		{"Environment", testEnvironment},
		{"Configure", testConfigure},
		{"Detached", testDetached},
		{"Logs", testLogs},
		{"Memory", testMemory},
		{"PIDs", testPIDs},
		{"Disk", testDisk},
		{"CPU", testCPU},
		{"LimitsAreSeen", testLimitsAreSeen},
		{"Network", testNetwork},
		{"NoNetwork", testNoNetwork},
		{"Egress", testEgress},
		{"Snapshots", testSnapshots},
		{"Dial", testDial},
		{"Files", testFiles},
		{"Watch", testWatch},
		{"BadSpec", testBadSpec},
		{"Canceled", testCanceled},
		{"Adopt", testAdopt},
		{"Delete", testDelete},
		{"Parallel", testParallel},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.test(t, e)
			all, err := e.Driver.List(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			for _, in := range all {
				t.Errorf("left: %+v", in)
			}
		})
	}
}

// disk returns the size of a sandbox's disk that is wanted, or the one that the driver has.
func (e *Env) disk(want int64) int64 {
	if e.Lacks.DiskOf > 0 {
		return e.Lacks.DiskOf
	}
	return want
}

// spec is the spec of a small sandbox.
func (e *Env) spec(id string, command ...string) execution.Spec {
	s := execution.Spec{
		ID:          id,
		Image:       e.Image,
		Network:     execution.NetworkNone,
		CPUMillis:   2000,
		MemoryBytes: 128 << 20,
		PIDs:        64,
		DiskBytes:   e.disk(64 << 20),
		StopTimeout: time.Second,
	}
	if len(command) > 0 {
		s.Command = append([]string{"/bin/guest"}, command...)
	}
	return s
}

// Start creates a sandbox that is deleted with its logs when the test ends.
func (e *Env) Start(t *testing.T, s execution.Spec) execution.Instance {
	t.Helper()
	t.Cleanup(func() {
		if err := e.Driver.Delete(context.Background(), s.ID); err != nil {
			t.Error(err)
		}
		if err := e.Driver.DeleteLogs(context.Background(), s.ID); err != nil {
			t.Error(err)
		}
	})
	in, err := e.Driver.Ensure(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// within runs a subtest whose sandboxes are gone when it returns.
func within(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, test)
}

// Ended waits until a sandbox has ended.
func (e *Env) Ended(t *testing.T, id string) execution.Exit {
	t.Helper()
	var in execution.Instance
	wait.NoError(t, "sandbox "+id+" ends", func() (err error) {
		in, err = e.Driver.Get(t.Context(), id)
		if err == nil && in.Phase != execution.Exited {
			err = fmt.Errorf("it is %s", in.Phase)
		}
		return err
	})
	if in.Exit == nil {
		t.Fatalf("%s has no exit", id)
	}
	return *in.Exit
}

// Output runs a command in a sandbox and returns its standard output.
func (e *Env) Output(t *testing.T, id string, x execution.ExecSpec) string {
	t.Helper()
	out, errOut, code := e.run(t, id, x, "")
	if code != 0 {
		t.Fatalf("%v: exit code %d: %s%s", x.Command, code, out, errOut)
	}
	return out
}

// Try is Output for a command that may fail; it reports whether the command
// succeeded.
func (e *Env) Try(t *testing.T, id string, x execution.ExecSpec) (string, bool) {
	t.Helper()
	out, errOut, code := e.run(t, id, x, "")
	return out + errOut, code == 0
}

func guest(command ...string) execution.ExecSpec {
	return execution.ExecSpec{Command: append([]string{"/bin/guest"}, command...)}
}

func (e *Env) run(t *testing.T, id string, x execution.ExecSpec, input string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	p, err := e.Driver.Exec(ctx, id, x)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := io.WriteString(p.Stdin(), input); err != nil {
		t.Fatal(err)
	}
	if err := p.Stdin().Close(); err != nil {
		t.Fatal(err)
	}
	var errOut bytes.Buffer
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(&errOut, p.Stderr())
		done <- err
	}()
	out, err := io.ReadAll(p.Stdout())
	if err = errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	code, err = p.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return string(out), errOut.String(), code
}

func (e *Env) logs(t *testing.T, id string, q execution.LogQuery) []execution.LogLine {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	var lines []execution.LogLine
	err := e.Driver.Logs(ctx, id, q, func(l execution.LogLine) error {
		lines = append(lines, l)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func text(lines []execution.LogLine) []string {
	var out []string
	for _, l := range lines {
		out = append(out, l.Text)
	}
	return out
}

// has waits until the log has a line.
func (e *Env) has(t *testing.T, id, line string) {
	t.Helper()
	wait.NoError(t, "log of "+id, func() error {
		if got := text(e.logs(t, id, execution.LogQuery{})); !slices.Contains(got, line) {
			return fmt.Errorf("no line %q in %q", line, got)
		}
		return nil
	})
}

func testLife(t *testing.T, e *Env) {
	within(t, "sandbox", func(t *testing.T) {
		before := time.Now()
		in := e.Start(t, e.spec("life")) // the image's entrypoint and command
		if in.Phase != execution.Running || in.ID != "life" || in.Exit != nil || in.StartedAt.Before(before.Add(-time.Second)) {
			t.Errorf("Ensure returned %+v", in)
		}
		e.has(t, "life", "sleeping")
		all, err := e.Driver.List(t.Context())
		if err != nil || len(all) != 1 || all[0].ID != "life" || all[0].Phase != execution.Running {
			t.Errorf("List = %+v, %v", all, err)
		}
		st, err := e.Driver.Stats(t.Context(), "life")
		if e.Lacks.Stats {
			if !refused(err) {
				t.Errorf("Stats = %+v, %v", st, err)
			}
		} else if err != nil || st.CPU <= 0 || st.MemoryBytes <= 0 || st.PIDs <= 0 || st.At.IsZero() {
			t.Errorf("Stats = %+v, %v", st, err)
		}
		in, err = e.Driver.Stop(t.Context(), "life", wait.Limit)
		if err != nil || in.Phase != execution.Exited || in.Exit == nil || in.Exit.Code != 0 || in.Exit.Cause != execution.CauseExit {
			t.Errorf("Stop = %+v, %v", in, err)
		}
		if _, err := e.Driver.Exec(t.Context(), "life", guest("echo")); !errs.Is(err, errs.FailedPrecondition) {
			t.Errorf("Exec after the end: %v", err)
		}
		if err := e.Driver.Delete(t.Context(), "life"); err != nil {
			t.Error(err)
		}
		if _, err := e.Driver.Get(t.Context(), "life"); !errs.Is(err, errs.NotFound) {
			t.Errorf("Get after Delete: %v", err)
		}
		if got := text(e.logs(t, "life", execution.LogQuery{})); !slices.Contains(got, "told to stop") {
			t.Errorf("log after Delete: %q", got)
		}
		if err := e.Driver.DeleteLogs(t.Context(), "life"); err != nil {
			t.Error(err)
		}
		if err := e.Driver.Logs(t.Context(), "life", execution.LogQuery{}, func(execution.LogLine) error { return nil }); !errs.Is(err, errs.NotFound) {
			t.Errorf("Logs after DeleteLogs: %v", err)
		}
	})
}

func testEnsureAgain(t *testing.T, e *Env) {
	within(t, "sandbox", func(t *testing.T) {
		s := e.spec("again", "sleep")
		first := e.Start(t, s)
		pid := e.Output(t, "again", guest("id"))
		second, err := e.Driver.Ensure(t.Context(), s)
		if err != nil || second.Phase != execution.Running || second.StartedAt.Sub(first.StartedAt).Abs() > time.Second {
			t.Errorf("second Ensure = %+v, %v, first was %+v", second, err, first)
		}
		if got := e.Output(t, "again", guest("id")); got == pid {
			t.Errorf("process ids do not go on: %q twice", pid)
		}
	})
}

func testExit(t *testing.T, e *Env) {
	for _, c := range []struct {
		name    string
		command []string
		code    int
	}{
		{"zero", []string{"/bin/guest", "exit", "0"}, 0},
		{"code", []string{"/bin/guest", "exit", "3"}, 3},
		{"signal", []string{"/bin/guest", "signal", "15"}, 143},
		{"killed", []string{"/bin/guest", "signal", "9"}, 137},
		{"missing", []string{"/no/such/program"}, 127},
		{"forbidden", []string{"/etc/passwd"}, 126},
	} {
		within(t, c.name, func(t *testing.T) {
			s := e.spec("exit-" + c.name)
			s.Command = c.command
			e.Start(t, s)
			exit := e.Ended(t, s.ID)
			if exit.Cause != execution.CauseExit || exit.Code != c.code || time.Since(exit.At).Abs() > wait.Limit {
				t.Errorf("exit = %+v, want code %d", exit, c.code)
			}
			again, err := e.Driver.Ensure(t.Context(), s)
			if err != nil || again.Phase != execution.Exited || again.Exit == nil || again.Exit.Code != c.code {
				t.Errorf("Ensure of an ended sandbox = %+v, %v", again, err)
			}
		})
	}
}

func testStop(t *testing.T, e *Env) {
	within(t, "stubborn", func(t *testing.T) {
		e.Start(t, e.spec("stubborn", "stub"))
		e.has(t, "stubborn", "sleeping")
		began := time.Now()
		in, err := e.Driver.Stop(t.Context(), "stubborn", 300*time.Millisecond)
		if err != nil || in.Phase != execution.Exited || in.Exit == nil || in.Exit.Code != 137 || in.Exit.Cause != execution.CauseExit {
			t.Errorf("Stop = %+v %+v, %v", in, in.Exit, err)
		}
		if took := time.Since(began); took < 300*time.Millisecond || took > 10*time.Second {
			t.Errorf("Stop took %s", took)
		}
		if again, err := e.Driver.Stop(t.Context(), "stubborn", time.Minute); err != nil || again.Exit == nil || again.Exit.Code != 137 {
			t.Errorf("second Stop = %+v, %v", again, err)
		}
	})
	within(t, "unknown", func(t *testing.T) {
		if _, err := e.Driver.Stop(t.Context(), "unknown", time.Second); !errs.Is(err, errs.NotFound) {
			t.Errorf("Stop: %v", err)
		}
	})
}

func testIdle(t *testing.T, e *Env) {
	within(t, "sandbox", func(t *testing.T) {
		s := e.spec("idle", "exit", "3")
		s.Idle = true
		e.Start(t, s)
		for range 2 { // the end of a process is not the end of the sandbox
			if out, _, code := e.run(t, "idle", guest("echo", "hi"), ""); out != "hi\n" || code != 0 {
				t.Errorf("%q, %d", out, code)
			}
		}
		began := time.Now()
		in, err := e.Driver.Stop(t.Context(), "idle", time.Minute)
		if err != nil || in.Exit == nil || in.Exit.Cause != execution.CauseExit || in.Exit.Code != 143 {
			t.Errorf("Stop = %+v %+v, %v", in, in.Exit, err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("Stop took %s", took)
		}
	})
}

// testWarm: the image has no shell, so only that it does no harm is to be seen.
func testWarm(t *testing.T, e *Env) {
	within(t, "sandbox", func(t *testing.T) {
		s := e.spec("warm-up")
		s.Idle, s.Warm = true, true
		e.Start(t, s)
		made := time.Now()
		list, err := e.Driver.Processes(t.Context(), s.ID)
		if err != nil || len(list) > 0 {
			t.Errorf("processes %+v, %v", list, err)
		}
		if a, err := e.Driver.Activity(t.Context(), s.ID); err != nil || a.Processes != 0 || a.Idle < time.Since(made)/2 {
			t.Errorf("%+v, %v", a, err)
		}
		if err := e.Driver.Configure(t.Context(), s.ID, execution.Identity{Claim: "c", Env: []string{"A=b"}}); err != nil {
			t.Fatal(err)
		}
		if out, _, code := e.run(t, s.ID, guest("echo", "hi"), ""); out != "hi\n" || code != 0 {
			t.Errorf("%q, %d", out, code)
		}
	})
}

func testExec(t *testing.T, e *Env) {
	within(t, "sandbox", func(t *testing.T) {
		e.Start(t, e.spec("exec", "sleep"))
		if out, _, code := e.run(t, "exec", guest("cat"), "some\ninput"); out != "some\ninput" || code != 0 {
			t.Errorf("cat: %q, %d", out, code)
		}
		if out, errOut, code := e.run(t, "exec", guest("err", "oh"), ""); out != "" || errOut != "oh\n" || code != 0 {
			t.Errorf("err: %q, %q, %d", out, errOut, code)
		}
		if _, _, code := e.run(t, "exec", guest("exit", "42"), ""); code != 42 {
			t.Errorf("exit code %d", code)
		}
		if _, _, code := e.run(t, "exec", guest("signal", "15"), ""); code != 143 {
			t.Errorf("exit code %d", code)
		}
		x := guest("id")
		x.User, x.WorkDir = "app", "/tmp"
		if out := e.Output(t, "exec", x); !strings.HasPrefix(out, "uid=1000 gid=1000 dir=/tmp host=exec ") {
			t.Errorf("id: %q", out)
		}
		x = guest("env")
		x.Env = []string{"EXTRA=1"}
		if out := e.Output(t, "exec", x); !strings.Contains(out, "EXTRA=1\n") || !strings.Contains(out, "FROM=image\n") {
			t.Errorf("env: %q", out)
		}
		x = guest("echo", "hi")
		x.TTY, x.Rows, x.Cols = true, 24, 80
		if out := e.Output(t, "exec", x); out != "hi\r\n" {
			t.Errorf("with a terminal: %q", out)
		}
		if _, err := e.Driver.Exec(t.Context(), "exec", execution.ExecSpec{Command: []string{"/none"}}); errs.Detail(err, "exit_code") != "127" {
			t.Errorf("Exec of a missing program: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		defer cancel()
		p, err := e.Driver.Exec(ctx, "exec", guest("stub"))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if err := p.Signal(ctx, 9); err != nil {
			t.Error(err)
		}
		go io.Copy(io.Discard, p.Stdout())
		go io.Copy(io.Discard, p.Stderr())
		if code, err := p.Wait(ctx); err != nil || code != 137 {
			t.Errorf("killed: %d, %v", code, err)
		}
	})
	within(t, "unknown", func(t *testing.T) {
		if _, err := e.Driver.Exec(t.Context(), "unknown", guest("echo")); !errs.Is(err, errs.NotFound) {
			t.Errorf("Exec: %v", err)
		}
	})
}

func testEnvironment(t *testing.T, e *Env) {
	within(t, "sandbox", func(t *testing.T) {
		s := e.spec("envs", "env")
		s.Env, s.User, s.WorkDir, s.Hostname = []string{"FROM=spec", "EXTRA=two words"}, "1000:1000", "/", "myhost"
		e.Start(t, s)
		if exit := e.Ended(t, s.ID); exit.Code != 0 {
			t.Errorf("exit %+v", exit)
		}
		got := text(e.logs(t, s.ID, execution.LogQuery{}))
		for _, want := range []string{"FROM=spec", "EXTRA=two words", "PATH=/bin"} {
			if !slices.Contains(got, want) {
				t.Errorf("no %s in %q", want, got)
			}
		}
	})
	within(t, "privileges", func(t *testing.T) {
		s := e.spec("caps", "sleep")
		s.ReadOnlyRoot = true
		e.Start(t, s)
		got := e.Output(t, s.ID, guest("caps"))
		for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd"} {
			if !strings.Contains(got, set+":\t0000000000000000\n") {
				t.Errorf("a process of root has capabilities:\n%s", got)
				break
			}
		}
		if !strings.Contains(got, "NoNewPrivs:\t1") {
			t.Errorf("new privileges are possible:\n%s", got)
		}
		if out, errOut, code := e.run(t, s.ID, guest("write", "/home/x", "1"), ""); code == 0 {
			t.Errorf("the root filesystem is writable: %s%s", out, errOut)
		}
		if out, errOut, code := e.run(t, s.ID, guest("write", "/tmp/x", "1"), ""); code != 0 {
			t.Errorf("/tmp is not writable: %s%s", out, errOut)
		}
	})
	within(t, "capabilities", func(t *testing.T) {
		s := e.spec("capsdefault", "sleep")
		s.Capabilities = execution.CapabilitiesDefault
		e.Start(t, s)
		// chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, sys_chroot, setfcap
		const set = "00000000800405fb"
		got := e.Output(t, s.ID, guest("caps"))
		for _, want := range []string{"CapInh:\t0000000000000000", "CapPrm:\t" + set, "CapEff:\t" + set, "CapBnd:\t" + set, "NoNewPrivs:\t1"} {
			if !strings.Contains(got, want+"\n") {
				t.Errorf("no %q of a process of root in\n%s", want, got)
			}
		}
		user := guest("caps")
		user.User = "1000:1000"
		got = e.Output(t, s.ID, user)
		for _, want := range []string{"CapInh", "CapPrm", "CapEff"} {
			if !strings.Contains(got, want+":\t0000000000000000\n") {
				t.Errorf("a process of another user has capabilities:\n%s", got)
			}
		}
		s = e.spec("capsunknown", "sleep")
		s.Capabilities = "all"
		if _, err := e.Driver.Ensure(t.Context(), s); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("an unknown set: %v", err)
		}
	})
}

func testLogs(t *testing.T, e *Env) {
	within(t, "sandbox", func(t *testing.T) {
		e.Start(t, e.spec("logs", "lines", "20", "20"))
		lines := e.logs(t, "logs", execution.LogQuery{Follow: true})
		if len(lines) != 20 {
			t.Fatalf("followed %d lines: %q", len(lines), text(lines))
		}
		for _, want := range []struct {
			n      int
			stream string
		}{{0, "stdout"}, {1, "stderr"}} {
			l := lines[slices.Index(text(lines), fmt.Sprint("line ", want.n))]
			if l.Stream != want.stream || l.Offset <= 0 || time.Since(l.At).Abs() > wait.Limit {
				t.Errorf("line %d: %+v", want.n, l)
			}
		}
		if got := e.logs(t, "logs", execution.LogQuery{Offset: lines[14].Offset}); !slices.Equal(text(got), text(lines[15:])) {
			t.Errorf("after line 15: %q", text(got))
		}
		if got := e.logs(t, "logs", execution.LogQuery{Tail: 3}); !slices.Equal(text(got), text(lines[17:])) {
			t.Errorf("the last three: %q", text(got))
		}
	})
	within(t, "unknown", func(t *testing.T) {
		if err := e.Driver.Logs(t.Context(), "unknown", execution.LogQuery{}, func(execution.LogLine) error { return nil }); !errs.Is(err, errs.NotFound) {
			t.Errorf("Logs: %v", err)
		}
	})
}
