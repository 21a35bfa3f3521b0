package runsc_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/testsupport/runsctest"
)

// samples are durations by name of the measurement.
type samples map[string][]time.Duration

func (s samples) time(b *testing.B, what string, f func() error) {
	b.Helper()
	began := time.Now()
	if err := f(); err != nil {
		b.Fatal(what, ": ", err)
	}
	s[what] = append(s[what], time.Since(began))
}

func (s samples) p50(what string) float64 {
	d := slices.Clone(s[what])
	slices.Sort(d)
	return float64(d[len(d)/2].Microseconds()) / 1000
}

// BenchmarkSnapshot measures pause (until the sandbox is Paused), resume until the first exec is answered, and five forks, each in turn with what runsc
// alone does: checkpoint and restore of the same program.
func BenchmarkSnapshot(b *testing.B) {
	m := machine{runsctest.New(b)}
	bare := newBareRunsc(b, m.Bin)
	bare.run(b, "bare-0")
	s := m.spec("bench", "count", "/tmp/count")
	if _, err := m.Driver.Ensure(b.Context(), s); err != nil {
		b.Fatal(err)
	}
	all, n := samples{}, 0
	for b.Loop() {
		n++
		snap := fmt.Sprint("snap-", n)
		all.time(b, "bare-checkpoint", func() error { return bare.checkpoint(fmt.Sprint("bare-", n-1), snap) })
		all.time(b, "pause", func() error {
			_, err := m.Driver.Snapshot(b.Context(), s.ID, snap, execution.SnapshotOptions{})
			return err
		})
		bare.delete(b, fmt.Sprint("bare-", n-1))
		all.time(b, "bare-restore", func() error { return bare.restore(fmt.Sprint("bare-", n), snap) })
		s.Restore = snap
		all.time(b, "resume", func() error { _, err := m.Driver.Ensure(b.Context(), s); return err })
		all.time(b, "first-exec", func() error { return m.exec(b.Context(), s.ID) })
		all.time(b, "bare-5-restores", func() error {
			return five(func(i int) error { return bare.restore(fmt.Sprint("fork-", n, "-", i), snap) })
		})
		for i := range 5 {
			bare.delete(b, fmt.Sprint("fork-", n, "-", i))
		}
		all.time(b, "5-forks", func() error {
			return five(func(i int) error {
				fork := s
				fork.ID = fmt.Sprint("fork-", n, "-", i)
				_, err := m.Driver.Ensure(b.Context(), fork)
				return err
			})
		})
		for i := range 5 {
			if err := m.Driver.Delete(b.Context(), fmt.Sprint("fork-", n, "-", i)); err != nil {
				b.Fatal(err)
			}
		}
		if err := m.Driver.DeleteSnapshot(b.Context(), snap); err != nil {
			b.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(bare.dir, snap)); err != nil {
			b.Fatal(err)
		}
	}
	for what := range all {
		b.ReportMetric(all.p50(what), what+"-p50-ms")
	}
	b.ReportMetric(all.p50("pause")/all.p50("bare-checkpoint"), "pause/bare")
	b.ReportMetric(all.p50("resume")/all.p50("bare-restore"), "resume/bare")
	b.ReportMetric(all.p50("5-forks")/all.p50("bare-5-restores"), "5-forks/bare")
	bare.delete(b, fmt.Sprint("bare-", n))
}

func five(f func(i int) error) error {
	var wg sync.WaitGroup
	errors := make([]error, 5)
	for i := range errors {
		wg.Go(func() { errors[i] = f(i) })
	}
	wg.Wait()
	for _, err := range errors {
		if err != nil {
			return err
		}
	}
	return nil
}

// bareRunsc runs the guest program with runsc alone, with the flags of the driver.
type bareRunsc struct {
	dir  string
	args []string
}

func newBareRunsc(b *testing.B, bin string) *bareRunsc {
	b.Helper()
	r := &bareRunsc{dir: b.TempDir()}
	r.args = []string{
		filepath.Join(bin, "runsc"), "--root=" + filepath.Join(r.dir, "run"), "--network=sandbox", "--platform=systrap", "--overlay2=root:self",
		"--host-uds=open", "--in-sandbox-cgroup=v2", "--cpu-num-from-quota=true",
	}
	rootfs := filepath.Join(r.dir, "rootfs")
	for _, dir := range []string{"bin", "tmp", "proc"} {
		if err := os.MkdirAll(filepath.Join(rootfs, dir), 0o755); err != nil {
			b.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(rootfs, "bin", "guest"), "miren.dev/runtime/testsupport/executiontest/guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	b.Cleanup(func() { _ = exec.Command("umount", filepath.Join(r.dir, "run", "null-netns")).Run() }) // runsc leaves it
	return r
}

// bundle makes the bundle of a container.
func (r *bareRunsc) bundle(id string) (string, error) {
	dir := filepath.Join(r.dir, "bundles", id)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	config, err := json.Marshal(map[string]any{
		"ociVersion": "1.0.0",
		"process":    map[string]any{"args": []string{"/bin/guest", "count", "/tmp/count"}, "cwd": "/", "user": map[string]int{"uid": 0}},
		"root":       map[string]any{"path": filepath.Join(r.dir, "rootfs")},
		"mounts":     []map[string]any{{"destination": "/proc", "type": "proc", "source": "proc"}, {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}},
		"linux": map[string]any{
			"cgroupsPath": fmt.Sprintf("/rt-bench-%d/%s", os.Getpid(), id),
			"namespaces":  []map[string]string{{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network"}},
		},
	})
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644)
}

func (r *bareRunsc) command(args ...string) error {
	c := exec.Command(r.args[0], append(slices.Clone(r.args[1:]), args...)...)
	if err := c.Run(); err != nil { // without pipes, which the sandbox would keep open
		return fmt.Errorf("runsc %v: %w", args, err)
	}
	return nil
}

func (r *bareRunsc) run(b *testing.B, id string) {
	b.Helper()
	dir, err := r.bundle(id)
	if err == nil {
		err = r.command("run", "--detach", "--bundle="+dir, id)
	}
	if err != nil {
		b.Fatal(err)
	}
}

// checkpoint ends the container.
func (r *bareRunsc) checkpoint(id, image string) error {
	return r.command("checkpoint", "--compression=none", "--image-path="+filepath.Join(r.dir, image), id)
}

func (r *bareRunsc) restore(id, image string) error {
	dir, err := r.bundle(id)
	if err != nil {
		return err
	}
	return r.command("restore", "--detach", "--bundle="+dir, "--image-path="+filepath.Join(r.dir, image), id)
}

func (r *bareRunsc) delete(b *testing.B, id string) {
	b.Helper()
	if err := r.command("delete", "--force", id); err != nil {
		b.Fatal(err)
	}
}
