package buildkit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// available is the memory that the machine could give, in bytes.
func available(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemAvailable:" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatal("no MemAvailable")
	return 0
}

func TestStepsHaveLimits(t *testing.T) {
	e := newEnv(t, func(c *Config) {
		c.Limits = Limits{MemoryBytes: 512 << 20, Processes: 20, DiskBytes: 256 << 20, DiskFreeBytes: 1 << 20}
	})

	fails := func(t *testing.T, text string, limit Limit, message, key string) {
		t.Helper()
		_, _, err := e.build(t, e.dockerfile(t, text))
		var f *Failure
		if !errors.As(err, &f) || !errs.Is(err, errs.FailedPrecondition) {
			t.Fatalf("got %v", err)
		}
		if f.Limit != limit || !strings.Contains(err.Error(), message) || !strings.Contains(errs.HintOf(err), key) || errs.Detail(err, "limit") != string(limit) {
			t.Errorf("limit %q: %v\nhint %q\nlog %s", f.Limit, err, errs.HintOf(err), failureLog(err))
		}
	}

	t.Run("a step that eats 10 GiB of memory ends, and the machine keeps its own", func(t *testing.T) {
		before, least := available(t), int64(1)<<62
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for tick := time.Tick(50 * time.Millisecond); ; {
				least = min(least, available(t))
				select {
				case <-tick:
				case <-stop:
					return
				}
			}
		}()
		// tail keeps all of a line.
		fails(t, "FROM debian\nRUN head -c 10G /dev/zero | tail\n", LimitMemory, "out of memory: it used more than 512 MiB", "build.memory_bytes")
		close(stop)
		<-stopped
		// Other work of the machine uses memory too; 10 GiB are more than that.
		if before-least > 4<<30 {
			t.Errorf("the machine had %d MiB, and at one time %d MiB", before>>20, least>>20)
		}
	})

	t.Run("a step that forks without end ends", func(t *testing.T) {
		fails(t, "FROM debian\nSHELL [\"/bin/bash\", \"-c\"]\nRUN f() { f | f & }; f; sleep 600\n", LimitProcesses, "too many processes", "build.processes")
	})

	t.Run("a step that fills the disk ends", func(t *testing.T) {
		fails(t, "FROM debian\nRUN head -c 100G /dev/zero > /x\n", LimitDisk, "wrote more than 256 MiB to the disk", "build.step_bytes")
	})

	t.Run("a step that fills a cache mount ends", func(t *testing.T) {
		fails(t, "FROM debian\nRUN --mount=type=cache,target=/c head -c 100G /dev/zero > /c/x\n", LimitDisk, "wrote more than 256 MiB to the disk", "build.step_bytes")
	})

	t.Run("a step within the limits is not ended", func(t *testing.T) {
		if _, _, err := e.build(t, e.dockerfile(t, "FROM debian\nRUN head -c 100M /dev/zero > /x && head -c 100M /dev/zero | tail -c 1 > /y && sleep 6\n")); err != nil {
			t.Error(err, failureLog(err))
		}
	})

	t.Run("all steps together have limits", func(t *testing.T) {
		for _, file := range []string{"memory/" + e.buildkit.cgroup() + "/memory.limit_in_bytes", e.buildkit.cgroup() + "/memory.max"} {
			b, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", file))
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err != nil || n > 1<<50 {
				t.Errorf("%s is %s", file, b)
			}
			return
		}
		t.Error("no control group of builds")
	})
}

// TestDeletedImagesGiveDiskBack builds and deletes images: the builder then uses no more disk than the budget of
// its caches.
func TestDeletedImagesGiveDiskBack(t *testing.T) {
	const budget, image, builds, slack = 200 << 20, 100 << 20, 5, 50 << 20
	e := newEnv(t, func(c *Config) { c.CacheBytes = budget })
	images := containerd.NewImages(e.containerd)
	build := func(name, text string) {
		t.Helper()
		req := e.dockerfile(t, text)
		req.ImageName += "-" + name
		res, _, err := e.build(t, req)
		if err != nil {
			t.Fatal(err, failureLog(err))
		}
		if err := images.Delete(t.Context(), res.Image); err != nil {
			t.Fatal(err)
		}
	}
	build("base", "FROM debian\nRUN true\n")
	before := e.used(t)
	for i := range builds {
		build(strconv.Itoa(i), fmt.Sprintf("FROM debian\nRUN head -c %d /dev/urandom > /x\n", image))
	}
	wait.NoError(t, "the disk is given back", func() error {
		if used := e.used(t) - before; used > budget+slack {
			return fmt.Errorf("%d MiB are used", used>>20)
		}
		return nil
	}, wait.Within(2*time.Minute))
}

// used is the disk that the installation's state occupies, in bytes.
func (e *env) used(t *testing.T) (n int64) {
	t.Helper()
	if err := filepath.WalkDir(e.instance.State(), func(_ string, d fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = d.Info()
		}
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			return nil
		}
		if err == nil {
			n += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestLimitDefaults(t *testing.T) {
	for machine, want := range map[int64]int64{2 << 30: 1 << 30, 8 << 30: 2 << 30, 64 << 30: 16 << 30} {
		if got := (Limits{}).withDefaults(machine).MemoryBytes; got != want {
			t.Errorf("%d: %d, want %d", machine, got, want)
		}
	}
}
