package runsc_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/testsupport/runsctest"
)

// count reads a number of sandboxes from the environment; hack/soak.sh has large ones.
func count(t *testing.T, name string, otherwise int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestManySandboxes has many sandboxes at once, and then many more one after the other: nothing of the machine grows
// with the number of those that have ended.
func TestManySandboxes(t *testing.T) {
	m := runsctest.New(t)
	e := m.Env()
	spec := func(id string) execution.Spec {
		return execution.Spec{
			ID: id, Image: m.Image, Idle: true, Network: execution.NetworkBridge,
			CPUMillis: 1000, MemoryBytes: 128 << 20, PIDs: 64, DiskBytes: 16 << 20,
		}
	}
	// each calls f for n ids, at most width of them at a time.
	each := func(n, width int, name string, f func(id string) error) {
		t.Helper()
		var all sync.WaitGroup
		failed, slots := make([]error, n), make(chan struct{}, width)
		for i := range n {
			slots <- struct{}{}
			all.Go(func() {
				failed[i] = f(fmt.Sprintf("%s-%d", name, i))
				<-slots
			})
		}
		all.Wait()
		for i, err := range failed {
			if err != nil {
				t.Fatalf("%s %d: %v", name, i, err)
			}
		}
	}
	ensure := func(id string) error { _, err := e.Driver.Ensure(t.Context(), spec(id)); return err }
	remove := func(id string) error { return e.Driver.Delete(t.Context(), id) }
	answer := func(id string) error {
		p, err := e.Driver.Exec(t.Context(), id, execution.ExecSpec{Command: []string{"/bin/guest", "echo"}, NoInput: true})
		if err != nil {
			return err
		}
		code, err := p.Wait(t.Context())
		if err == nil && code != 0 {
			err = fmt.Errorf("exit code %d", code)
		}
		return err
	}

	n := count(t, "SANDBOXES_AT_ONCE", 16)
	began := time.Now()
	each(n, n, "many", func(id string) error {
		if err := ensure(id); err != nil {
			return err
		}
		return answer(id)
	})
	t.Logf("%d sandboxes at once answered after %s", n, time.Since(began).Round(time.Millisecond))
	each(n, n, "many", remove)
	n = count(t, "SANDBOXES_IDLE", 16)
	each(n, 4, "idle", ensure)
	each(n, 4, "idle", answer)
	each(n, 4, "idle", remove)

	row := func(n int, name string) {
		t.Helper()
		each(n, 4, name, func(id string) error {
			if err := ensure(id); err != nil {
				return err
			}
			if err := remove(id); err != nil {
				return err
			}
			return e.Driver.DeleteLogs(t.Context(), id)
		})
	}
	row(16, "warm-up")
	before := grown(t, m)
	n = count(t, "SANDBOXES_IN_A_ROW", 32)
	row(n, "row")
	after := grown(t, m)
	for what, have := range after {
		t.Logf("%s: %d before, %d after %d sandboxes", what, before[what], have, n)
		if have > before[what]+before[what]/2+8 {
			t.Errorf("%s grew from %d to %d with %d sandboxes", what, before[what], have, n)
		}
	}
}

// grown counts what could grow: files on the disk and open ones, goroutines, and memory in MiB.
func grown(t *testing.T, m *runsctest.Machine) map[string]int {
	t.Helper()
	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	g := map[string]int{"goroutines": runtime.NumGoroutine(), "memory of the driver": int(mem.HeapAlloc >> 20)}
	for what, dir := range map[string]string{"files of the state": m.Instance.StateDir, "files of the run directory": m.Instance.RunDir} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if d != nil && d.IsDir() && d.Name() == "fs" { // of an image
				return fs.SkipDir
			}
			g[what]++
			return nil // an error is a file that was removed meanwhile
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	g["open files"] = len(open)
	return g
}
