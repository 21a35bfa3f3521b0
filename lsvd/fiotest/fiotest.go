// Package fiotest has fio write to a disk of a test and verify what it wrote:
// experiments 3 and 6 of the virtual disk, whichever way it is reached.
package fiotest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Disk is a disk that fio can reach.
type Disk struct {
	size   int64 // bytes
	target []string
}

// NBD is the disk of size bytes that an NBD server has at uri.
func NBD(uri string, size int64) Disk {
	return Disk{size, []string{"--ioengine=nbd", "--uri=" + uri}}
}

// Device is the block device of size bytes at path. Nothing is cached.
func Device(path string, size int64) Disk {
	return Disk{size, []string{"--ioengine=libaio", "--direct=1", "--filename=" + path}}
}

// Load says how large a disk shall be, and with which arguments to write to it
// first: 64 MiB and short bytes at random, such as "128m"; or, with LSVD_SOAK
// set to a duration, 1 GiB for that long.
func Load(t testing.TB, short string) (size int64, args []string) {
	t.Helper()
	args = []string{"--verify_backlog=512"}
	long := os.Getenv("LSVD_SOAK")
	if long == "" {
		return 64 << 20, append(args, "--io_size="+short)
	}
	d, err := time.ParseDuration(long)
	if err != nil {
		t.Fatal(err)
	}
	return 1 << 30, append(args, "--time_based", fmt.Sprintf("--runtime=%d", int(d.Seconds())))
}

// Verify writes 4 to 64 KiB at a time in random order as seed says, with 32
// requests under way and a flush after every 64, and verifies it: the whole
// disk once, unless more arguments say otherwise. With --verify_only it
// verifies what such a run wrote, which must have been without a backlog: else
// fio verifies nothing. It is an error if a request fails, what is read is not
// what was written, or ctx ends.
func (d Disk) Verify(ctx context.Context, t testing.TB, seed string, more ...string) error {
	t.Helper()
	args := append([]string{"--name=verify", "--rw=randwrite", "--bsrange=4k-64k", "--iodepth=32", "--verify=crc32c", "--verify_fatal=1",
		"--fsync=64", "--randseed=" + seed, fmt.Sprintf("--size=%d", d.size)}, d.target...)
	cmd := exec.CommandContext(ctx, "fio", append(args, more...)...)
	cmd.Dir = t.TempDir() // fio leaves files where it is
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("fio: %w (%v)\n%s", err, ctx.Err(), out)
	}
	if !strings.Contains(string(out), "err= 0") {
		return fmt.Errorf("fio says nothing of its errors:\n%s", out)
	}
	return nil
}
