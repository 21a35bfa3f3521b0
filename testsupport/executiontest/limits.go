package executiontest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

func testMemory(t *testing.T, e *Env) {
	within(t, "within", func(t *testing.T) {
		s := e.spec("mem-ok", "memory", "64")
		e.Start(t, s)
		if exit := e.Ended(t, s.ID); exit.Cause != execution.CauseExit || exit.Code != 0 {
			t.Errorf("exit %+v", exit)
		}
	})
	within(t, "beyond", func(t *testing.T) {
		s := e.spec("mem-oom", "memory", "1024", "60")
		e.Start(t, s)
		if exit := e.Ended(t, s.ID); exit.Cause != execution.CauseOOM || exit.Code != 137 || exit.Message == "" {
			t.Errorf("exit %+v", exit)
		}
	})
}

func testPIDs(t *testing.T, e *Env) {
	within(t, "sandbox", func(t *testing.T) {
		s := e.spec("pids", "forks", "100")
		s.PIDs = 24
		e.Start(t, s)
		e.Ended(t, s.ID)
		got := strings.Join(text(e.logs(t, s.ID, execution.LogQuery{})), "\n")
		var started, alive, threads int
		_, err := fmt.Sscanf(got, "started %d alive %d threads %d", &started, &alive, &threads)
		if err != nil || alive >= 24 || threads > 24 || started >= 100 || !strings.Contains(got, "again=true") {
			t.Errorf("of 100 processes with a limit of 24 processes and threads: %q, %v", got, err)
		}
	})
}

func testDisk(t *testing.T, e *Env) {
	if e.Lacks.DiskOf > 0 {
		within(t, "less", func(t *testing.T) {
			s := e.spec("less", "sleep")
			s.DiskBytes = e.Lacks.DiskOf - 1
			if _, err := e.Driver.Ensure(t.Context(), s); !refused(err) {
				t.Errorf("a disk that cannot be made as small: %v", err)
			}
		})
	}
	within(t, "sandbox", func(t *testing.T) {
		s := e.spec("disk", "sleep")
		s.DiskBytes = 16 << 20
		e.Start(t, s)
		if out, errOut, code := e.run(t, s.ID, guest("write", "/home/small", "4"), ""); code != 0 {
			t.Errorf("4 of 16 MiB: %s%s", out, errOut)
		}
		if e.Lacks.SoftDisk {
			return
		}
		for _, dir := range []string{"/home", "/tmp"} { // files in /tmp are not memory
			if _, errOut, code := e.run(t, s.ID, guest("write", dir+"/big", "64"), ""); code == 0 || !strings.Contains(errOut, "no space left") {
				t.Errorf("64 of 16 MiB in %s: code %d: %s", dir, code, errOut)
			}
			e.Output(t, s.ID, guest("write", dir+"/big", "0"))
		}
	})
}

func testCPU(t *testing.T, e *Env) {
	within(t, "sandbox", func(t *testing.T) {
		s := e.spec("cpu", "sleep")
		s.CPUMillis = 200
		e.Start(t, s)
		before, err := e.Driver.Stats(t.Context(), s.ID)
		if e.Lacks.Stats && refused(err) {
			return // nothing tells what it used
		}
		if err != nil {
			t.Fatal(err)
		}
		e.Output(t, s.ID, guest("spin", "2000"))
		after, err := e.Driver.Stats(t.Context(), s.ID)
		if err != nil {
			t.Fatal(err)
		}
		if used, time := after.CPU-before.CPU, after.At.Sub(before.At); used > time*35/100 {
			t.Errorf("used %s of a CPU in %s, with a limit of 20%%", used, time)
		}
	})
}

// Programs decide by what they see how many threads they start and how much memory they take.
func testLimitsAreSeen(t *testing.T, e *Env) {
	within(t, "sandbox", func(t *testing.T) {
		s := e.spec("seen")
		s.Idle, s.CPUMillis, s.MemoryBytes = true, 2000, 256<<20
		e.Start(t, s)
		seen := func() (cpus int, memory, disk, free int64) {
			t.Helper()
			out := e.Output(t, s.ID, guest("limits"))
			if _, err := fmt.Sscanf(out, "cpus=%d memory=%d disk=%d free=%d", &cpus, &memory, &disk, &free); err != nil {
				t.Fatalf("%q: %v", out, err)
			}
			return cpus, memory, disk, free
		}
		cpus, memory, disk, free := seen()
		if cpus != min(2, runtime.NumCPU()) || memory != s.MemoryBytes || !e.Lacks.SoftDisk && (disk != s.DiskBytes || free > disk || free < disk/2) {
			t.Errorf("%d CPUs, %d bytes of memory, %d of %d bytes of disk free", cpus, memory, free, disk)
		}
		err := e.Driver.Configure(t.Context(), s.ID, execution.Identity{Claim: "c", CPUMillis: 500})
		if e.Lacks.ClaimLimits {
			if !refused(err) {
				t.Errorf("a claim with a lower limit: %v", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if cpus, _, _, _ := seen(); cpus != 1 {
			t.Errorf("%d CPUs with a limit of a half", cpus)
		}
	})
}

func testNetwork(t *testing.T, e *Env) {
	within(t, "sandbox", func(t *testing.T) {
		s := e.spec("net", "serve", "8081")
		s.Network = execution.NetworkBridge
		in := e.Start(t, s)
		if in.Address == "" {
			t.Fatal("no address")
		}
		url := "http://" + in.Address + ":8081/path"
		wait.NoError(t, "answer of the sandbox", func() error {
			c := http.Client{Timeout: time.Second}
			res, err := c.Get(url)
			if err != nil {
				return err
			}
			defer res.Body.Close()
			if b, err := io.ReadAll(res.Body); err != nil || string(b) != "hello /path\n" {
				t.Errorf("answer %q, %v", b, err)
			}
			return nil
		})
		local, err := e.Driver.Exec(t.Context(), s.ID, guest("serve", "8083", "127.0.0.1"))
		if err != nil {
			t.Fatal(err)
		}
		defer local.Close()
		wait.NoError(t, "ports of all addresses and of the loopback address", func() error {
			ports, err := e.Driver.Listening(t.Context(), s.ID)
			if want := []execution.Listener{{Port: 8081}, {Port: 8083, Loopback: true}}; err == nil && !slices.Equal(ports, want) {
				err = fmt.Errorf("%v instead of %v", ports, want)
			}
			return err
		})
		if out := e.Output(t, s.ID, guest("get", "http://localhost:8081/")); !strings.HasPrefix(out, "200 OK\n") {
			t.Errorf("from inside: %q", out)
		}
		if out := e.Output(t, s.ID, guest("read", "/etc/hosts")); !strings.Contains(out, in.Address+"\tnet\n") {
			t.Errorf("/etc/hosts: %q", out)
		}
		if got, err := e.Driver.Get(t.Context(), s.ID); err != nil || got.Address != in.Address {
			t.Errorf("Get = %+v, %v", got, err)
		}
	})
}

func testNoNetwork(t *testing.T, e *Env) {
	within(t, "sandbox", func(t *testing.T) {
		in := e.Start(t, e.spec("no-net", "serve", "8081"))
		if in.Address != "" {
			t.Errorf("address %s", in.Address)
		}
		e.has(t, "no-net", "serving 8081")
		wait.NoError(t, "loopback", func() error {
			if out, errOut, code := e.run(t, "no-net", guest("dial", "127.0.0.1:8081"), ""); code != 0 {
				return fmt.Errorf("%s%s", out, errOut)
			}
			return nil
		})
		if out, _, code := e.run(t, "no-net", guest("dial", "192.0.2.1:80", "500"), ""); code == 0 {
			t.Errorf("reaches the outside: %s", out)
		}
	})
}

func testWatch(t *testing.T, e *Env) {
	within(t, "sandbox", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		changes, err := e.Driver.Watch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		e.Start(t, e.spec("watch", "sleep"))
		if _, _, code := e.run(t, "watch", guest("echo"), ""); code != 0 {
			t.Error("exec failed")
		}
		if _, err := e.Driver.Stop(t.Context(), "watch", wait.Limit); err != nil {
			t.Fatal(err)
		}
		for seen := false; !seen; {
			select {
			case id, ok := <-changes:
				if !ok {
					t.Fatal("the end was not reported")
				}
				in, err := e.Driver.Get(t.Context(), id)
				seen = err == nil && in.ID == "watch" && in.Phase == execution.Exited
			case <-ctx.Done():
				t.Fatal("the end was not reported")
			}
		}
		cancel()
		for range changes {
		}
	})
}

func testBadSpec(t *testing.T, e *Env) {
	for _, c := range []struct {
		name  string
		spec  func(*execution.Spec)
		class errs.Class
	}{
		{"image", func(s *execution.Spec) { s.Image = "none@sha256:" + strings.Repeat("0", 64) }, errs.NotFound},
		{"id", func(s *execution.Spec) { s.ID = "../up" }, errs.InvalidArgument},
		{"network", func(s *execution.Spec) { s.Network = "host" }, errs.InvalidArgument},
	} {
		within(t, c.name, func(t *testing.T) {
			s := e.spec("bad")
			c.spec(&s)
			if in, err := e.Driver.Ensure(t.Context(), s); !errs.Is(err, c.class) {
				t.Errorf("Ensure = %+v, %v, want %s", in, err, c.class)
			}
			if _, err := e.Driver.Get(t.Context(), "bad"); !errs.Is(err, errs.NotFound) {
				t.Errorf("Get: %v", err)
			}
			if err := e.Driver.DeleteLogs(t.Context(), "bad"); err != nil {
				t.Error(err)
			}
		})
	}
}

func testCanceled(t *testing.T, e *Env) {
	for i := range 6 {
		after := time.Duration(i) * 25 * time.Millisecond
		within(t, after.String(), func(t *testing.T) {
			s := e.spec(fmt.Sprint("canceled-", i), "sleep")
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()
			_, err := e.Driver.Ensure(ctx, s)
			if err != nil {
				if _, err := e.Driver.Get(t.Context(), s.ID); !errs.Is(err, errs.NotFound) {
					t.Errorf("Get after a failed Ensure: %v", err)
				}
			}
			e.Start(t, s) // it must work after any earlier failure
		})
	}
}

func testAdopt(t *testing.T, e *Env) {
	within(t, "sandbox", func(t *testing.T) {
		running, short := e.spec("adopt", "sleep"), e.spec("adopt-short", "exit", "5")
		running.Network = execution.NetworkBridge
		first := e.Start(t, running)
		e.Start(t, short)
		e.Ended(t, short.ID)
		e.Driver = e.Renew(t)
		in, err := e.Driver.Get(t.Context(), running.ID)
		if err != nil || in.Phase != execution.Running || in.Address != first.Address {
			t.Errorf("Get = %+v, %v, was %+v", in, err, first)
		}
		if in, err = e.Driver.Ensure(t.Context(), running); err != nil || in.Phase != execution.Running {
			t.Errorf("Ensure = %+v, %v", in, err)
		}
		if out := e.Output(t, running.ID, guest("echo", "still here")); out != "still here\n" {
			t.Errorf("exec: %q", out)
		}
		if exit := e.Ended(t, short.ID); exit.Code != 5 || exit.Cause != execution.CauseExit {
			t.Errorf("exit %+v", exit)
		}
		if in, err := e.Driver.Stop(t.Context(), running.ID, wait.Limit); err != nil || in.Exit == nil || in.Exit.Code != 0 {
			t.Errorf("Stop = %+v, %v", in, err)
		}
	})
}

func testDelete(t *testing.T, e *Env) {
	within(t, "running", func(t *testing.T) {
		s := e.spec("delete", "stub")
		s.Network = execution.NetworkBridge
		e.Start(t, s)
		followed := make(chan error, 1)
		go func() {
			followed <- e.Driver.Logs(context.Background(), s.ID, execution.LogQuery{Follow: true}, func(execution.LogLine) error { return nil })
		}()
		for range 2 {
			if err := e.Driver.Delete(t.Context(), s.ID); err != nil {
				t.Error(err)
			}
			if _, err := e.Driver.Get(t.Context(), s.ID); !errs.Is(err, errs.NotFound) {
				t.Errorf("Get after Delete: %v", err)
			}
		}
		wait.Receive(t, "the end of the reader of the log", followed)
	})
	within(t, "unknown", func(t *testing.T) {
		if err := e.Driver.Delete(t.Context(), "never-was"); err != nil {
			t.Error(err)
		}
	})
}

func testParallel(t *testing.T, e *Env) {
	within(t, "sandboxes", func(t *testing.T) {
		const n = 10
		var wg sync.WaitGroup
		for i := range n {
			s := e.spec(fmt.Sprint("parallel-", i), "serve", "80")
			s.Network, s.MemoryBytes = execution.NetworkBridge, 64<<20
			t.Cleanup(func() { _ = e.Driver.DeleteLogs(context.Background(), s.ID) })
			wg.Go(func() {
				in, err := e.Driver.Ensure(t.Context(), s)
				if err != nil {
					t.Error(err)
					return
				}
				if in.Phase != execution.Running {
					t.Errorf("%+v", in)
				}
			})
		}
		wg.Wait()
		all, err := e.Driver.List(t.Context())
		if err != nil || len(all) != n {
			t.Errorf("List: %d, %v", len(all), err)
		}
		addresses := map[string]bool{}
		for _, in := range all {
			addresses[in.Address] = true
			wg.Go(func() {
				if err := e.Driver.Delete(context.Background(), in.ID); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if len(addresses) != n {
			t.Errorf("%d addresses: %v", len(addresses), addresses)
		}
	})
}
