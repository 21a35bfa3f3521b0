package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/need"
)

func newManager(t *testing.T) *Manager {
	t.Helper()
	need.Root(t)
	m := New(fmt.Sprintf("rt-cgrouptest-%d", os.Getpid()))
	if err := m.detect(); err != nil {
		need.Missing(t, err)
	}
	t.Cleanup(func() {
		ids, err := m.List()
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			if err := m.Delete(context.Background(), id); err != nil {
				t.Error(err)
			}
		}
		if err := m.Remove(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// run starts a process in the group of id and returns how it ends.
func run(t *testing.T, m *Manager, id, script string) (pid int, ended <-chan error) {
	t.Helper()
	var join strings.Builder
	for _, c := range []string{"cpu", "cpuacct", "memory", "pids"} {
		fmt.Fprintf(&join, "echo $$ > %s/cgroup.procs; ", m.dir(c, id))
	}
	c := exec.Command("sh", "-c", join.String()+script)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	reaped := make(chan struct{}) // a zombie keeps its group
	go func() {
		done <- c.Wait()
		close(reaped)
	}()
	t.Cleanup(func() { _ = c.Process.Kill(); <-reaped })
	return c.Process.Pid, done
}

func TestLimitsHold(t *testing.T) {
	m := newManager(t)
	for range 2 { // creating it again gives it the limits again
		if err := m.Create("a", Limits{CPUMillis: 250, MemoryBytes: 16 << 20, PIDs: 10}); err != nil {
			t.Fatal(err)
		}
	}
	_, ended := run(t, m, "a", "exec tail /dev/zero") // reads all of it into memory
	if err := <-ended; err == nil {
		t.Error("it used more than its memory")
	}
	u, err := m.Usage("a")
	if most := map[bool]int64{true: 2, false: 1}[m.v2]; err != nil || u.OOMKills < 1 || u.OOMKills > most || u.CPU <= 0 {
		t.Errorf("Usage = %+v, %v", u, err)
	}
	files := map[string]string{
		m.dir("cpu", "a") + "/cpu.cfs_quota_us": "25000",
		m.dir("cpu", "a") + "/cpu.cfs_burst_us": "25000",
		m.dir("pids", "a") + "/pids.max":        strconv.Itoa(10*pidsFactor + pidsBase),
	}
	if m.v2 {
		dir := m.dir("", "a")
		files = map[string]string{
			dir + "/cpu.max":       "25000 100000",
			dir + "/cpu.max.burst": "25000",
			dir + "/pids.max":      strconv.Itoa(10*pidsFactor + pidsBase),
			dir + "/memory.max":    strconv.Itoa(16<<20 + Overhead),
		}
	}
	for path, want := range files {
		if _, err := os.Stat(path); strings.Contains(path, "burst") && errors.Is(err, os.ErrNotExist) {
			continue // a kernel before 5.14
		}
		if b, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(b)) != want {
			t.Errorf("%s = %q, %v, want %s", filepath.Base(path), b, err, want)
		}
	}
}

func TestUpdateChangesOnlyWhatIsGiven(t *testing.T) {
	m := newManager(t)
	if err := m.Update("a", Limits{PIDs: 5}); !errs.Is(err, errs.NotFound) {
		t.Errorf("Update of no group: %v", err)
	}
	if err := m.Create("a", Limits{CPUMillis: 1000, MemoryBytes: 64 << 20, PIDs: 10}); err != nil {
		t.Fatal(err)
	}
	for _, bytes := range []int64{16 << 20, 32 << 20, 24 << 20} {
		if err := m.Update("a", Limits{MemoryBytes: bytes}); err != nil {
			t.Fatal(err)
		}
		files := map[string]string{
			m.dir("cpu", "a") + "/cpu.cfs_quota_us":         "100000",
			m.dir("pids", "a") + "/pids.max":                strconv.FormatInt(Tasks(10), 10),
			m.dir("memory", "a") + "/memory.limit_in_bytes": strconv.FormatInt(bytes+Overhead, 10),
		}
		if m.v2 {
			dir := m.dir("", "a")
			files = map[string]string{
				dir + "/cpu.max":    "100000 100000",
				dir + "/pids.max":   strconv.FormatInt(Tasks(10), 10),
				dir + "/memory.max": strconv.FormatInt(bytes+Overhead, 10),
			}
		}
		for path, want := range files {
			if b, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(b)) != want {
				t.Errorf("%s = %q, %v, want %s", filepath.Base(path), b, err, want)
			}
		}
	}
}

func TestDeleteKillsProcesses(t *testing.T) {
	m := newManager(t)
	if err := m.Create("b", Limits{}); err != nil {
		t.Fatal(err)
	}
	pid, _ := run(t, m, "b", "sleep 60 & sleep 60")
	for {
		pids, err := m.PIDs("b")
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(pids, pid) && len(pids) > 1 {
			break
		}
	}
	file, err := m.HelpersFile("b")
	if err != nil {
		t.Fatal(err)
	}
	helper := exec.Command("sh", "-c", "echo 0 >"+file+" && echo joined && exec sleep 60")
	joined, err := helper.StdoutPipe()
	if err == nil {
		err = helper.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	reaped := make(chan struct{})
	defer func() { <-reaped }()
	if _, err := io.ReadFull(joined, make([]byte, len("joined"))); err != nil {
		t.Fatal(err)
	}
	go func() { _ = helper.Wait(); close(reaped) }() // it is killed
	if pids, err := m.Helpers("b"); err != nil || !slices.Equal(pids, []int{helper.Process.Pid}) {
		t.Errorf("Helpers = %v, %v", pids, err)
	}
	if pids, err := m.PIDs("b"); err != nil || slices.Contains(pids, helper.Process.Pid) {
		t.Errorf("PIDs = %v, %v with the helper", pids, err)
	}
	if ids, err := m.List(); err != nil || !slices.Equal(ids, []string{"b"}) {
		t.Errorf("List = %v, %v", ids, err)
	}
	for range 2 {
		if err := m.Delete(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Usage("b"); !errs.Is(err, errs.NotFound) {
		t.Errorf("Usage after Delete: %v", err)
	}
	if ids, err := m.List(); err != nil || len(ids) > 0 {
		t.Errorf("List = %v, %v", ids, err)
	}
}

// The sandbox that uses most is killed, by its parent's limit, and the count is its own.
func TestAllSandboxesTogetherHaveLimits(t *testing.T) {
	m := newManager(t)
	if err := m.LimitAll(Limits{CPUMillis: 1000, CPUPercent: 25, MemoryBytes: 16 << 20}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b"} {
		if err := m.Create(id, Limits{}); err != nil {
			t.Fatal(err)
		}
	}
	pid, _ := run(t, m, "b", "exec sleep 600")
	_, ended := run(t, m, "a", "exec tail /dev/zero")
	if err := <-ended; err == nil {
		t.Error("it used more memory than all may")
	}
	if u, err := m.Usage("a"); err != nil || u.OOMKills < 1 {
		t.Errorf("Usage of a = %+v, %v", u, err)
	}
	if pids, err := m.PIDs("b"); err != nil || !slices.Contains(pids, pid) {
		t.Errorf("the other one was killed too: %v, %v", pids, err)
	}
	file, want := m.dir("cpu", "")+"/cpu.shares", "256"
	if m.v2 {
		file, want = m.dir("", "")+"/cpu.weight", "25"
	}
	if b, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(b)) != want {
		t.Errorf("%s = %q, %v, want %s", filepath.Base(file), b, err, want)
	}
}
