package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// diskShown is a disk as `r disk show --json` prints it.
type diskShown struct {
	Disk      shownDisk
	Snapshots []struct {
		Spec   struct{ Name string }
		Status struct{ Phase string }
	}
}

type shownDisk struct {
	Name   string
	Status struct {
		Phase     string
		SizeBytes int64 `json:"size_bytes"`
		Node      string
	}
}

// TestDisks makes, clones, resizes and deletes disks with the commands, also while
// the server is killed. `r server stop` leaves nothing of them on the machine.
func TestDisks(t *testing.T) {
	t.Parallel()
	s := own(t, "disks")
	if out := s.r(t, "", "disk", "create", "data", "--size", "64M"); !strings.Contains(out, "created data") {
		t.Errorf("create: %s", out)
	}
	s.r(t, "", "disk", "snapshot", "data@monday")
	s.r(t, "", "disk", "clone", "data@monday", "copy")
	s.r(t, "", "disk", "resize", "copy", "128M")
	if out := s.r(t, "", "disk", "list"); !strings.Contains(out, "data") || !strings.Contains(out, "128") {
		t.Errorf("list: %s", out)
	}
	var d diskShown
	s.json(t, &d, "disk", "show", "data")
	if d.Disk.Name != "data" || d.Disk.Status.Phase != "ready" || d.Disk.Status.SizeBytes != 64<<20 || len(d.Snapshots) != 1 || d.Snapshots[0].Spec.Name != "monday" {
		t.Errorf("show: %+v", d)
	}
	if res := s.try(t, "", "disk", "delete", "data", "--yes"); res.Code == 0 || !strings.Contains(res.Stderr, "snapshots (1)") {
		t.Errorf("delete of a disk with a snapshot: %s", res)
	}
	if res := s.try(t, "", "disk", "resize", "copy", "64M"); res.Code == 0 || !strings.Contains(res.Stderr, "shrink") {
		t.Errorf("shrink: %s", res)
	}
	if res := s.try(t, "", "disk", "clone", "data", "--at", "2026-01-01T00:00:00Z", "before"); res.Code == 0 || !strings.Contains(res.Stderr, "no snapshot of 2026-01-01") {
		t.Errorf("clone at a time before the first snapshot: %s", res)
	}
	s.r(t, "", "disk", "clone", "data", "--at", time.Now().UTC().Format(time.RFC3339Nano), "before")
	s.json(t, &d, "disk", "show", "before")
	if d.Disk.Status.Phase != "ready" || d.Disk.Status.SizeBytes != 64<<20 {
		t.Errorf("clone at a time: %+v", d)
	}
	s.r(t, "", "disk", "delete", "before", "--yes")
	s.r(t, "", "disk", "delete-snapshot", "data@monday")

	s.r(t, "", "disk", "schedule", "data", "--cron", "30 3 * * *", "--time-zone", "Europe/Berlin", "--keep-for", "720h")
	contains(t, "schedule by cron", s.r(t, "", "disk", "show", "data"), "30 3 * * *", "Europe/Berlin", "720h")
	s.r(t, "", "disk", "schedule", "data", "--off")
	s.r(t, "", "disk", "schedule", "data", "--every", "24h", "--keep", "2")
	wait.For(t, "the first scheduled snapshot is ready", func() bool {
		s.json(t, &d, "disk", "show", "data")
		return len(d.Snapshots) == 1 && d.Snapshots[0].Status.Phase == "ready"
	}, wait.Within(converge))
	s.r(t, "", "disk", "schedule", "data", "--off")
	s.r(t, "", "disk", "delete-snapshot", "data@"+d.Snapshots[0].Spec.Name)

	// The server is killed while it makes a disk: the next one completes it.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := s.command(ctx, "", "disk", "create", "late", "--size", "64M")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the disk is being made", func() bool {
		return s.try(t, "", "disk", "show", "late").Code == 0
	})
	kill(t, s.pid(t, "server"))
	_ = cmd.Wait() // killed with the server, or served by the next one
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the disk is ready and detached", func() bool {
		var d diskShown
		s.json(t, &d, "disk", "show", "late")
		return d.Disk.Status.Phase == "ready" && d.Disk.Status.Node == ""
	}, wait.Within(converge))
	for _, name := range []string{"data", "copy", "late"} {
		s.r(t, "", "disk", "delete", name, "--yes")
	}
	var left []shownDisk
	if s.json(t, &left, "disk", "list"); len(left) > 0 {
		t.Errorf("after the deletions: %+v", left)
	}
	s.stopsWithoutHolder(t)
}

// stopsWithoutHolder kills the server, the disk daemon and the holder of its block devices
// while a sandbox uses a disk. `r server stop` ends everything all the same, and the disk
// keeps the synced file.
func (s *server) stopsWithoutHolder(t *testing.T) {
	t.Helper()
	s.r(t, "", "disk", "create", "held", "--size", "64M")
	sb := strings.TrimSpace(s.r(t, "", "sandbox", "create", "--image", "python", "-v", "held:/data"))
	s.r(t, "", "sandbox", "exec", sb, "--", "sh", "-c", "echo kept >/data/file && sync /data/file")
	kill(t, s.pid(t, "server"))
	kill(t, processOf(t, "lsvd\x00daemon", s.state))
	kill(t, processOf(t, "lsvd\x00holder", s.state))
	s.r(t, "", "server", "stop")
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	sb = strings.TrimSpace(s.r(t, "", "sandbox", "create", "--image", "python", "-v", "held:/data"))
	if out := s.r(t, "", "sandbox", "exec", sb, "--", "cat", "/data/file"); out != "kept\n" {
		t.Errorf("the disk has %q", out)
	}
	s.r(t, "", "sandbox", "delete", sb)
}

// TestForksAndDisks: a sandbox that writes to a disk is paused with an open file on it, and writes on after the resume. It
// has no forks; one that reads a disk has, and they read it too.
func TestForksAndDisks(t *testing.T) {
	t.Parallel()
	const disk = "of-forks"
	shared.r(t, "", "disk", "create", disk, "--size", "64M")
	writer := shared.run(t, "--volume", disk+":/data", "--", "sh", "-c", "exec >>/data/log; i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done")
	written := func(more int) (all []string) {
		t.Helper()
		wait.NoError(t, "the sandbox writes to its disk", func() error {
			res := shared.try(t, "", "sandbox", "exec", writer, "--", "cat", "/data/log")
			if res.Code != 0 { // it has not made the file yet
				return fmt.Errorf("%s", res)
			}
			if all = strings.Fields(res.Stdout); len(all) <= more {
				return fmt.Errorf("%d lines, not more than %d", len(all), more)
			}
			return nil
		})
		return all
	}
	before := written(3)
	for _, command := range []string{"snapshot", "fork"} {
		if res := shared.try(t, "", "sandbox", command, writer); res.Code == 0 || !strings.Contains(res.Stderr, "writes to a disk at /data") {
			t.Errorf("%s of a sandbox that writes to a disk: %s", command, res)
		}
	}
	shared.r(t, "", "sandbox", "pause", writer)
	shared.r(t, "", "sandbox", "resume", writer)
	for i, line := range written(len(before) + 3) {
		if line != fmt.Sprint(i+1) {
			t.Fatalf("line %d is %s", i+1, line)
		}
	}
	shared.r(t, "", "sandbox", "delete", writer)

	reader := shared.run(t, "--volume", disk+":/data:ro", "--", "sleep", "600")
	shared.r(t, "", "sandbox", "exec", reader, "--", "true") // which waits until it runs
	ids := append(strings.Fields(shared.r(t, "", "sandbox", "fork", reader, "--count", "2")), reader)
	var logs []string
	for _, id := range ids {
		logs = append(logs, shared.r(t, "", "sandbox", "exec", id, "--", "cat", "/data/log"))
		if res := shared.try(t, "", "sandbox", "exec", id, "--", "touch", "/data/new"); res.Code == 0 {
			t.Errorf("%s writes to a disk that it only reads", id)
		}
	}
	if len(logs) != 3 || logs[0] != logs[2] || logs[1] != logs[2] || len(logs[2]) == 0 {
		t.Errorf("a reader and its forks read %q", logs)
	}
	for _, id := range ids {
		shared.r(t, "", "sandbox", "delete", id)
	}
	wait.NoError(t, "the disk is free", func() error {
		if res := shared.try(t, "", "disk", "delete", disk, "--yes"); res.Code != 0 {
			return fmt.Errorf("%s", res)
		}
		return nil
	}, wait.Within(converge))
}

// TestVolumesOfWarmSandboxes: a warm sandbox is claimed with a disk, writes to it, and has it after a pause; the next one
// reads what it wrote.
func TestVolumesOfWarmSandboxes(t *testing.T) {
	t.Parallel()
	const disk = "of-claims"
	shared.r(t, "", "disk", "create", disk, "--size", "64M")
	shared.r(t, "", "pool", "set", "javascript", "--min", "1", "--max", "2")
	claim := func(volume string) (id string) {
		t.Helper()
		var sb struct {
			ID   string `json:"id"`
			Spec struct {
				Origin string `json:"origin"`
			} `json:"spec"`
		}
		wait.NoError(t, "a warm sandbox is claimed", func() error {
			shared.json(t, &sb, "sandbox", "create", "--template", "javascript", "--volume", volume)
			if sb.Spec.Origin != "pool" {
				shared.r(t, "", "sandbox", "delete", sb.ID)
				return fmt.Errorf("it was made by way of %s; %s", sb.Spec.Origin, shared.r(t, "", "pool", "list"))
			}
			return nil
		}, wait.Within(time.Minute), wait.Every(time.Second))
		return sb.ID
	}
	writer := claim(disk + ":/data")
	shared.r(t, "", "sandbox", "exec", writer, "--", "sh", "-c", "echo written >/data/file")
	shared.r(t, "", "sandbox", "pause", writer)
	contains(t, "after a pause", shared.r(t, "", "sandbox", "exec", writer, "--", "cat", "/data/file"), "written")
	shared.r(t, "", "sandbox", "delete", writer)
	reader := claim(disk + ":/data:ro")
	contains(t, "another sandbox", shared.r(t, "", "sandbox", "exec", reader, "--", "cat", "/data/file"), "written")
	if res := shared.try(t, "", "sandbox", "exec", reader, "--", "touch", "/data/new"); res.Code == 0 {
		t.Error("it writes to a disk that it only reads")
	}
	shared.r(t, "", "sandbox", "delete", reader)
	shared.r(t, "", "pool", "delete", "javascript")
	wait.NoError(t, "the disk is free", func() error {
		if res := shared.try(t, "", "disk", "delete", disk, "--yes"); res.Code != 0 {
			return fmt.Errorf("%s", res)
		}
		return nil
	}, wait.Within(converge))
}
