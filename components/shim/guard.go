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

// guard holds the limits of one container that its control group cannot hold, and says on the container's error
// output which limit ended it. It keeps that output open, so that the line comes before its end.
type guard struct {
	limits limits
	group  string   // linux.cgroupsPath
	dirs   []string // where the container writes: the upper directory of its root, and its mounts
	stderr *os.File // nil when there is none
	since  time.Time
	broken string // the limit of the disk that the container broke; empty: none
}

// How often free space is read, and how often what the container wrote is counted: that takes longer the more files
// it has, and is at most a twentieth of the time.
const (
	freeInterval  = 250 * time.Millisecond
	countInterval = 5 * time.Second
	countShare    = 20
)

// newGuard opens the error output. The reader is there already, but may not have opened it yet: opened for both, a
// pipe does not wait for one.
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

// close gives up the error output.
func (g *guard) close() {
	if g.stderr != nil {
		_ = g.stderr.Close()
	}
}

// find notes where the container writes, once its root is mounted at rootfs.
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

// watch holds the limits until the sandbox has ended, and then says which it broke.
func (g *guard) watch(ctx context.Context, sandbox *process) {
	defer g.close()
	g.hold(ctx, sandbox)
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
	// A reader that went away must not keep the container.
	_ = g.stderr.SetWriteDeadline(time.Now().Add(time.Second))
	if _, err := g.stderr.WriteString(brokenLine(limit, text)); err != nil {
		log.G(ctx).WithError(err).Warn("the limit that ended the container could not be told")
	}
}

// hold kills the sandbox when it breaks a limit of the disk.
func (g *guard) hold(ctx context.Context, sandbox *process) {
	if g.limits.DiskBytes == 0 && g.limits.DiskFreeBytes == 0 || len(g.dirs) == 0 {
		return
	}
	fd, err := unix.PidfdOpen(sandbox.pid, 0)
	if err != nil {
		return // it has ended
	}
	defer unix.Close(fd)
	tick := time.NewTicker(freeInterval)
	defer tick.Stop()
	var (
		used, freeThen int64 // when it was counted last
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
		// Others use the disk too: what it lost says when to count, not who wrote it.
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
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // fails only when it has ended
			return
		}
	}
}

// free returns what the disk has left, in bytes, and whether that is too little.
func (g *guard) free() (full bool, bytes int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(g.dirs[0], &st); err != nil {
		return false, 0, &os.PathError{Op: "statfs", Path: g.dirs[0], Err: err}
	}
	bytes = int64(st.Bavail) * st.Bsize
	const share = 50 // of the files that the disk may have, this part stays free
	full = g.limits.DiskFreeBytes > 0 && (bytes < g.limits.DiskFreeBytes || st.Files > 0 && st.Ffree < st.Files/share)
	return full, bytes, nil
}

// count returns how many bytes of the disk the container's files use that it wrote since it began.
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
