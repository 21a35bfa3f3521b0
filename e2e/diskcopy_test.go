package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/lsvd/store/s3/s3test"
	"miren.dev/runtime/testsupport/wait"
)

// shownCopy is a copy as `r disk copies --json` prints it.
type shownCopy struct {
	ID   string
	Spec struct {
		DiskName string `json:"disk_name"`
	}
	Status struct {
		Phase     string
		TakenAt   string `json:"taken_at"`
		DataBytes int64  `json:"data_bytes"`
		SentBytes int64  `json:"sent_bytes"`
	}
}

// sum returns the checksum of a file of a disk, as a sandbox reads it.
func (s *server) sum(t *testing.T, disk, file string) string {
	t.Helper()
	id := s.run(t, "--volume", disk+":/data:ro", "--", "sleep", "600")
	fields := strings.Fields(s.r(t, "", "sandbox", "exec", id, "--", "sha256sum", "/data/"+file))
	s.r(t, "", "sandbox", "delete", id)
	if len(fields) != 2 {
		t.Fatalf("the checksum of %s is %v", file, fields)
	}
	return fields[0]
}

// detached waits until no node has a disk.
func (s *server) detached(t *testing.T, disk string) {
	t.Helper()
	wait.For(t, disk+" is detached", func() bool {
		var d diskShown
		s.json(t, &d, "disk", "show", disk)
		return d.Disk.Status.Node == ""
	}, wait.Within(converge))
}

// TestDiskCopies writes to a disk, copies it twice, destroys its data and the disk,
// and compares what is restored, for copies in a directory and in S3. The server
// is killed during a copy, and completes it.
func TestDiskCopies(t *testing.T) {
	t.Parallel()
	s := own(t, "diskcopies")
	t.Run("directory", func(t *testing.T) { s.copies(t, "dir", t.TempDir()) })
	t.Run("S3", func(t *testing.T) {
		server := s3test.Start(t, "minio")
		s.copies(t, "s3", fmt.Sprintf("s3://bucket/copies?endpoint=%s&credentials=%s", server.URL, server.Credentials))
	})
}

func (s *server) copies(t *testing.T, disk, url string) {
	s.r(t, "", "disk", "create", disk, "--size", "64M")
	writer := s.run(t, "--volume", disk+":/data", "--", "sleep", "600")
	fill := func(file string, mib int) {
		s.r(t, "", "sandbox", "exec", writer, "--", "sh", "-c", fmt.Sprintf("dd if=/dev/urandom of=/data/%s bs=1M count=%d && sync", file, mib))
	}
	fill("large", 16)
	var first, second shownCopy
	s.json(t, &first, "disk", "copy", disk, "--to", url)
	fill("small", 1)
	large := strings.Fields(s.r(t, "", "sandbox", "exec", writer, "--", "sha256sum", "/data/large"))[0]
	small := strings.Fields(s.r(t, "", "sandbox", "exec", writer, "--", "sha256sum", "/data/small"))[0]

	// The command and the server are killed; the next server completes the copy.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := s.command(ctx, "", "disk", "copy", disk, "--to", url)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	list := func() (all []shownCopy) {
		s.json(t, &all, "disk", "copies")
		return all
	}
	of := func() (mine []shownCopy) {
		for _, c := range list() {
			if c.Spec.DiskName == disk {
				mine = append(mine, c)
			}
		}
		return mine
	}
	wait.For(t, "the copy has begun", func() bool { return len(of()) == 2 }, wait.Within(converge))
	kill(t, s.pid(t, "server"))
	_ = cmd.Wait() // killed with the server, or served by the next one
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the copy is complete", func() bool {
		all := of()
		second = all[len(all)-1]
		return second.Status.Phase == "ready"
	}, wait.Within(converge))
	if first.Status.SentBytes < 16<<20 || second.Status.SentBytes >= 8<<20 || second.Status.DataBytes < first.Status.DataBytes {
		t.Errorf("the first copy %+v, the second %+v", first.Status, second.Status)
	}

	// Its data are destroyed, and then the disk.
	s.r(t, "", "sandbox", "exec", writer, "--", "sh", "-c", "rm -r /data/large /data/small && sync")
	s.r(t, "", "sandbox", "delete", writer)
	s.detached(t, disk)
	s.r(t, "", "disk", "delete", disk, "--yes")

	s.r(t, "", "disk", "restore", disk, "--as", disk+"-new")
	if got := s.sum(t, disk+"-new", "large"); got != large {
		t.Errorf("the large file has %s, not %s", got, large)
	}
	if got := s.sum(t, disk+"-new", "small"); got != small {
		t.Errorf("the small file has %s, not %s", got, small)
	}
	s.r(t, "", "disk", "restore", disk, "--as", disk+"-old", "--at", first.Status.TakenAt, "--store", url)
	if got := s.sum(t, disk+"-old", "large"); got != large {
		t.Errorf("by time: the large file has %s, not %s", got, large)
	}
	old := s.run(t, "--volume", disk+"-old:/data:ro", "--", "sleep", "600")
	if res := s.try(t, "", "sandbox", "exec", old, "--", "test", "-e", "/data/small"); res.Code == 0 {
		t.Error("the copy by time has a later file")
	}
	s.r(t, "", "sandbox", "delete", old)
	for _, c := range of() {
		s.r(t, "", "disk", "delete-copy", c.ID)
	}

	// On a schedule.
	s.detached(t, disk+"-new")
	s.r(t, "", "disk", "schedule", disk+"-new", "--every", "24h", "--copy-to", url, "--copy-keep", "2")
	wait.For(t, "the scheduled snapshot is copied", func() bool {
		for _, c := range list() {
			if c.Spec.DiskName == disk+"-new" && c.Status.Phase == "ready" {
				s.r(t, "", "disk", "schedule", disk+"-new", "--off")
				s.r(t, "", "disk", "delete-copy", c.ID)
				return true
			}
		}
		return false
	}, wait.Within(converge))
	var d diskShown
	s.json(t, &d, "disk", "show", disk+"-new")
	for _, snap := range d.Snapshots {
		s.r(t, "", "disk", "delete-snapshot", disk+"-new@"+snap.Spec.Name)
	}
	for _, name := range []string{disk + "-new", disk + "-old"} {
		s.detached(t, name)
		s.r(t, "", "disk", "delete", name, "--yes")
	}
	if strings.HasPrefix(url, "/") {
		_ = filepath.WalkDir(url, func(path string, e os.DirEntry, err error) error {
			// Temporary files of a killed server stay until an open finds them old.
			if err == nil && e.IsDir() && e.Name() == ".tmp" {
				return fs.SkipDir
			}
			if err == nil && !e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
				t.Errorf("%s is left of all copies", path)
			}
			return err
		})
	}
}
