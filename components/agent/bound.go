package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
)

// logCheck is the default of HubConfig.LogCheck.
const logCheck = 2 * time.Second

// ctimeGrain is more than the resolution of a file system's timestamps.
const ctimeGrain = time.Second

// boundLogs ends the sandboxes whose log directory takes more space than an
// agent writes. An agent deletes the oldest part of its log itself, so another
// program must be in its place.
func (h *Hub) boundLogs() {
	t := time.NewTicker(h.c.LogCheck)
	defer t.Stop()
	changed := map[string]unix.Timespec{} // when files were last created or deleted, as of the last check
	for {
		select {
		case <-h.stop:
			return
		case <-t.C:
		}
		h.mu.Lock()
		ids := make([]string, 0, len(h.conns))
		for id := range h.conns {
			ids = append(ids, id)
		}
		h.mu.Unlock()
		before := changed
		changed = make(map[string]unix.Timespec, len(ids))
		for _, id := range ids {
			at, err := h.checkLog(id, before[id])
			if err == nil {
				changed[id] = at
			} else if !errs.Is(err, errs.NotFound) && !errors.Is(err, fs.ErrNotExist) {
				h.c.Logger.Warn("check the size of a log", "sandbox", id, "error", err)
			}
		}
	}
}

// checkLog measures the log directory of id. It returns when files were last
// created or deleted there, or the zero time while deleted ones are still open.
// It looks for deleted files only if that time is later than before.
func (h *Hub) checkLog(id string, before unix.Timespec) (unix.Timespec, error) {
	var st unix.Stat_t
	dir, err := h.openSpool(id)
	if err != nil {
		return st.Ctim, err
	}
	defer dir.Close()
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return st.Ctim, errs.Wrap(err, "stat logs of %s", id)
	}
	bound, err := h.logBound(id)
	if err != nil {
		return st.Ctim, err // NotFound: the sandbox is gone, and the writer with it
	}
	names, err := spoolNames(dir)
	if err != nil {
		return st.Ctim, errs.Wrap(err, "list logs of %s", id)
	}
	sum, sound := int64(0), len(names) < maxSpoolFiles
	for _, n := range names {
		var f unix.Stat_t
		if unix.Fstatat(int(dir.Fd()), n, &f, unix.AT_SYMLINK_NOFOLLOW) == nil { // otherwise the file is gone
			sum += weight(&f)
			sound = sound && f.Mode&unix.S_IFMT == unix.S_IFREG
		}
	}
	changed := st.Ctim
	if time.Since(time.Unix(changed.Unix())) < ctimeGrain {
		changed = unix.Timespec{} // a later change may have the same time
	}
	if changed != before || changed == (unix.Timespec{}) {
		deleted, open := h.deletedBytes(id, st.Dev)
		if sum += deleted; open {
			changed = unix.Timespec{}
		}
	}
	if sound && sum <= bound {
		return changed, nil
	}
	h.c.Logger.Warn("a log takes more space than its agent uses; ending the sandbox", "sandbox", id, "bytes", sum, "files", len(names))
	h.c.Exceeded(id)
	return changed, h.cutLog(id, bound)
}

// weight returns how many bytes a file counts: a hole takes no space, but readers read it.
func weight(st *unix.Stat_t) int64 {
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return st.Blocks * 512
	}
	return min(max(st.Blocks*512, st.Size), 1<<50) // so that the sum of all files fits
}

// logBound returns how many bytes the log of id may take: more than its agent
// allows, which counts differently. NotFound when the sandbox is gone.
func (h *Hub) logBound(id string) (int64, error) {
	c, err := h.readConfig(id)
	if err != nil {
		return 0, err
	}
	if c.LogBytes <= 0 {
		c.LogBytes = agentproto.DefaultLogBytes
	}
	return 2*c.LogBytes + 1<<20, nil
}

// deletedBytes returns how many bytes of deleted files on the device of its log
// the processes of id keep open, and whether there are any: a deleted file is
// in no directory.
func (h *Hub) deletedBytes(id string, dev uint64) (sum int64, open bool) {
	pids, err := h.c.PIDs(id)
	if err != nil {
		h.c.Logger.Warn("list the processes of a sandbox", "sandbox", id, "error", err)
	}
	seen := map[uint64]bool{}
	for _, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		fds, _ := os.ReadDir(dir) // nil when the process has ended
		for _, fd := range fds {
			var st unix.Stat_t
			err := unix.Stat(filepath.Join(dir, fd.Name()), &st)
			if err != nil || st.Nlink > 0 || st.Dev != dev || st.Mode&unix.S_IFMT != unix.S_IFREG || seen[st.Ino] {
				continue
			}
			seen[st.Ino] = true
			sum += st.Blocks * 512
		}
	}
	return sum, len(seen) > 0
}

// cutLog removes the oldest part of a log until the rest is within the bound,
// and every file that no agent makes.
func (h *Hub) cutLog(id string, bound int64) error {
	dir := h.spool(id)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return errs.Wrap(err, "list logs of %s", id)
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return -cmp.Compare(a.Name(), b.Name()) }) // newest first
	var kept int64
	for _, e := range entries {
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(dir, e.Name()), &st) != nil {
			continue // gone
		}
		size := weight(&st)
		_, isSegment := agentproto.ParseSegmentName(e.Name())
		isExit := e.Name() == agentproto.ExitName
		if e.Type().IsRegular() && (isSegment && kept+size <= bound || isExit && size <= 2*agentproto.MaxExitFile) {
			kept += size
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return errs.Wrap(err, "cut the log of %s", id)
		}
	}
	return nil
}
