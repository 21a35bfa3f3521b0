package loop

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/frontend/fuse"
	"miren.dev/runtime/pkg/errs"
)

// Entry is what the host has of an attachment, served or not.
type Entry struct {
	Owner, Volume string
	Mount         string // where the FUSE file system is mounted; "" if it is not
	Device        string // the loop device; "" if there is none

	name   string // of the attachment: the mount's source and the file
	number int    // of the connection
	loop   int    // -1: none
}

// List returns what the host has of attachments of an owner.
func List(owner string) ([]Entry, error) {
	return list(func(e Entry) bool { return e.Owner == owner })
}

func list(want func(Entry) bool) ([]Entry, error) {
	byName := map[string]Entry{}
	mounts, err := mounts()
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		byName[m.name] = m
	}
	devices, err := loops()
	if err != nil {
		return nil, err
	}
	for n, name := range devices {
		e, ok := byName[name]
		if !ok {
			if e, ok = parseName(name); !ok {
				continue
			}
		}
		e.loop, e.Device = n, loopPath(n)
		byName[name] = e
	}
	var all []Entry
	for _, e := range byName {
		if want(e) {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b Entry) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

func parseName(name string) (Entry, bool) {
	p := strings.Split(name, ":")
	if len(p) != 4 || p[0] != "lsvd" {
		return Entry{}, false
	}
	return Entry{Owner: p[1], Volume: p[2], name: name, loop: -1}, true
}

// mounts returns the mounts of this package in this mount namespace.
func mounts() ([]Entry, error) {
	all, err := mountinfo.GetMounts(mountinfo.FSTypeFilter(fuse.Type))
	if err != nil {
		return nil, errs.Wrap(err, "list mounts")
	}
	var found []Entry
	for _, m := range all {
		if e, ok := parseName(m.Source); ok {
			e.number, e.Mount = m.Minor, m.Mountpoint
			found = append(found, e)
		}
	}
	return found, nil
}

// Sweep takes away the attachments of an owner, but those of volumes that keep
// wants. It is for devices that no process serves any more: their users get I/O
// errors, and a device that is still mounted or open goes when it is not. It
// returns what it found.
func Sweep(ctx context.Context, owner string, keep func(volume string) bool) ([]Entry, error) {
	return sweep(ctx, func(e Entry) bool { return e.Owner == owner && !keep(e.Volume) })
}

func sweep(ctx context.Context, want func(Entry) bool) ([]Entry, error) {
	found, err := list(want)
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, e := range found {
		if ctx.Err() != nil {
			return found, errs.Wrap(ctx.Err(), "sweep attachments")
		}
		if e.Mount != "" {
			failed = append(failed, fuse.Abort(e.number), fuse.Unmount(e.Mount), removeDir(e.Mount))
		}
		if e.loop >= 0 {
			failed = append(failed, forceLoop(e.loop, e.name))
		}
	}
	return found, errors.Join(failed...)
}

// removeDir removes a mount point.
func removeDir(dir string) error {
	err := os.Remove(dir)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EBUSY) { // busy: mounted in another namespace
		return nil
	}
	return errs.Wrap(err, "remove mount point")
}
