package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/log"
	"github.com/moby/sys/mountinfo"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// guard enforces the limits of one container that its control group cannot enforce, and writes to the container's error
// output which limit ended it. It keeps that output open, so that the line comes before its end.
type guard struct {
	limits limits
	group  string   // linux.cgroupsPath
	dirs   []string // paths to which the container writes: the upper directory of its root, and its mounts
	stderr *os.File // nil when there is none
	since  time.Time
	broken string // the disk limit that the container exceeded; empty: none
}

// How often free space is read, and how often the container's files are counted: counting takes longer the more files
// there are, and at most a twentieth of the time.
const (
	freeInterval  = 250 * time.Millisecond
	countInterval = 5 * time.Second
	countShare    = 20
)

// newGuard opens the error output. Its reader exists already, but may not have opened it yet: opened for both, a pipe
// does not wait for a reader.
func newGuard(l limits, group, stderr string) (*guard, error) {
	g := &guard{limits: l, group: group, since: time.Now()}
	if info, err := os.Stat(stderr); err != nil || info.Mode().Type() != fs.ModeNamedPipe {
		return g, nil
	}
	f, err := os.OpenFile(stderr, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open error output: %w", err)
	}
	g.stderr = f
	return g, nil
}

// close closes the error output.
func (g *guard) close() {
	if g.stderr != nil {
		_ = g.stderr.Close()
	}
}

// find records the paths to which the container writes, once its root is
// mounted at rootfs.
func (g *guard) find(rootfs string, mounts []specs.Mount) error {
	found, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(rootfs))
	if err != nil {
		return err
	}
	for _, m := range found {
		for option := range strings.SplitSeq(m.VFSOptions, ",") {
			if upper, ok := strings.CutPrefix(option, "upperdir="); ok {
				g.dirs = append(g.dirs, upper)
			}
		}
	}
	if len(g.dirs) == 0 {
		g.dirs = append(g.dirs, rootfs)
	}
	for _, m := range mounts {
		if m.Type != "bind" && !slices.Contains(m.Options, "bind") && !slices.Contains(m.Options, "rbind") || slices.Contains(m.Options, "ro") {
			continue
		}
		if info, err := os.Stat(m.Source); err == nil && info.IsDir() {
			g.dirs = append(g.dirs, m.Source)
		}
	}
	return nil
}

// watch enforces the limits until the sandbox has ended, and then writes which
// limit it exceeded.
func (g *guard) watch(ctx context.Context, sandbox *process) {
	defer g.close()
	g.enforceDisk(ctx, sandbox)
	<-sandbox.ended
	limit, text := g.broken, ""
	if limit == "" {
		limit = brokenInGroup(cgroupRoot, g.group)
	}
	switch limit {
	case "":
		return
	case limitMemory:
		text = "killed for using too much memory"
	case limitTasks:
		text = "no further process could be started"
	case limitDisk:
		text = fmt.Sprintf("killed for writing more than %s to the disk", mebibytes(g.limits.DiskBytes))
	case limitDiskFree:
		text = fmt.Sprintf("killed because the disk of the server has less than %s left", mebibytes(g.limits.DiskFreeBytes))
	}
	if g.stderr == nil {
		return
	}
	// A reader that closed the output must not block the container.
	_ = g.stderr.SetWriteDeadline(time.Now().Add(time.Second))
	if _, err := g.stderr.WriteString(brokenLine(limit, text)); err != nil {
		log.G(ctx).WithError(err).Warn("the limit that ended the container could not be told")
	}
}

// enforceDisk kills the sandbox when it exceeds a disk limit.
func (g *guard) enforceDisk(ctx context.Context, sandbox *process) {
	if g.limits.DiskBytes == 0 && g.limits.DiskFreeBytes == 0 || len(g.dirs) == 0 {
		return
	}
	fd, err := unix.PidfdOpen(sandbox.pid, 0)
	if err != nil {
		return // the sandbox has ended
	}
	defer unix.Close(fd)
	tick := time.NewTicker(freeInterval)
	defer tick.Stop()
	var (
		used, freeThen int64 // when its files were last counted
		next           = time.Now().Add(countInterval)
	)
	if _, freeThen, err = g.free(); err != nil {
		log.G(ctx).WithError(err).Warn("the disk of the container is not limited")
		return
	}
	for {
		select {
		case <-sandbox.ended:
			return
		case <-tick.C:
		}
		full, free, err := g.free()
		if err != nil {
			continue
		}
		// Other programs use the disk too: lost space says when to count, not
		// which program wrote.
		if grown := freeThen - free; g.limits.DiskBytes > 0 && (time.Now().After(next) || used+grown > g.limits.DiskBytes) {
			begin := time.Now()
			used, freeThen = g.count(), free
			next = time.Now().Add(max(countInterval, countShare*time.Since(begin)))
			if used > g.limits.DiskBytes {
				g.broken = limitDisk
			}
		}
		if full && g.broken == "" {
			g.broken = limitDiskFree
		}
		if g.broken != "" {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // it fails only when the sandbox has ended
			return
		}
	}
}

// free returns the free space of the disk, in bytes, and whether it is below
// the limit.
func (g *guard) free() (full bool, bytes int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(g.dirs[0], &st); err != nil {
		return false, 0, &os.PathError{Op: "statfs", Path: g.dirs[0], Err: err}
	}
	bytes = int64(st.Bavail) * st.Bsize
	const share = 50 // one in this many of the disk's inodes stays free
	full = g.limits.DiskFreeBytes > 0 && (bytes < g.limits.DiskFreeBytes || st.Files > 0 && st.Ffree < st.Files/share)
	return full, bytes, nil
}

// count returns how many bytes of the disk the container's files use, counting what it wrote since its start.
func (g *guard) count() int64 {
	var total int64
	type inode struct{ dev, ino uint64 }
	linked := map[inode]bool{}
	for _, dir := range g.dirs {
		_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return nil // removed meanwhile
			}
			var st unix.Stat_t
			if unix.Lstat(path, &st) != nil || time.Unix(st.Ctim.Sec, st.Ctim.Nsec).Before(g.since) {
				return nil
			}
			if st.Nlink > 1 && st.Mode&unix.S_IFMT == unix.S_IFREG {
				if linked[inode{st.Dev, st.Ino}] {
					return nil
				}
				linked[inode{st.Dev, st.Ino}] = true
			}
			total += st.Blocks * 512
			return nil
		})
	}
	return total
}
