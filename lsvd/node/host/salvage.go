package host

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// A stranded log has writes that a takeover has left out of its volume. It is moved
// aside as a whole, to a directory with the name of the snapshot of the takeover, and
// stays there until it is discarded. Names, beside those of the log:
const (
	salvageFile = "salvage.json" // in it: the volume that is being made of it
	discarded   = ".discarded"   // ends the name of a directory that is being removed
)

// SalvageSpec names a stranded log: Spec is about its volume.
type SalvageSpec struct {
	Spec
	Snapshot string // of the takeover that left the log out; empty: the only one
	As       string // name of the new volume, for Salvage
}

// Salvage makes a volume with everything that a stranded log has: a clone of the
// snapshot of its takeover, to which it applies the writes of the log. The volume gets
// its name when it is whole. What a call that was killed has left is removed by the
// next one. The log stays.
func (s *State) Salvage(ctx context.Context, st store.Store, spec SalvageSpec) (id lsvd.ID, t lsvd.Takeover, out lsvd.Salvaged, err error) {
	v, t, lock, err := s.lockStranded(ctx, st, spec)
	if err != nil {
		return id, t, out, err
	}
	defer lock.Close()
	if err := CheckKey(v, spec.Key); err != nil {
		return id, t, out, err
	}
	id, err = catalog.Make(ctx, st, spec.As, func(id lsvd.ID) (err error) {
		if err := WriteJSON(filepath.Join(s.strandedDir(v.ID, t), salvageFile), id.String()); err != nil {
			return err
		}
		out, err = s.fill(ctx, st, spec.Spec, v, t, id)
		return err
	})
	return id, t, out, errors.Join(err, s.removeLeftover(context.WithoutCancel(ctx), st, v.ID, t))
}

// EndSalvage removes what a Salvage that was killed has left. NotFound: this machine has
// no such log.
func (s *State) EndSalvage(ctx context.Context, st store.Store, spec SalvageSpec) error {
	_, _, lock, err := s.lockStranded(ctx, st, spec)
	if err != nil {
		return err
	}
	return lock.Close()
}

// fill makes the volume id of the stranded log.
func (s *State) fill(ctx context.Context, st store.Store, spec Spec, v *catalog.Volume, t lsvd.Takeover, id lsvd.ID) (out lsvd.Salvaged, err error) {
	err = lsvd.Clone(ctx, st, v.ID, t.String(), id, spec.Key)
	if errs.Is(err, errs.NotFound) {
		return out, errs.New(errs.NotFound, "the snapshot %s@%s, which the log goes on from, was deleted", v.Label(), t).
			WithHint("without it the log cannot be read as a disk; --discard removes the log")
	}
	if err != nil {
		return out, err
	}
	spec.Volume = id.String()
	d, err := s.Open(ctx, st, spec)
	if err != nil {
		return out, err
	}
	logs, err := s.OpenLog(s.strandedDir(v.ID, t))
	if err == nil {
		out, err = lsvd.Salvage(ctx, logs, v.ID, t, d)
	}
	if err != nil {
		now, end := context.WithCancel(ctx)
		end()
		d.Device.Close(now) // the volume is removed
		return out, err
	}
	return out, d.Close(ctx)
}

// DiscardStranded removes a stranded log for good. If a call is killed, the next one, or a
// Salvage, removes the rest.
func (s *State) DiscardStranded(ctx context.Context, st store.Store, spec SalvageSpec) (lsvd.Takeover, error) {
	v, t, lock, err := s.lockStranded(ctx, st, spec)
	if err != nil {
		return t, err
	}
	defer lock.Close()
	gone := s.strandedDir(v.ID, t) + discarded // no part of a log may look like a whole one
	if err = atomicfile.Rename(s.strandedDir(v.ID, t), gone); err == nil {
		err = os.RemoveAll(gone)
	}
	return t, errs.Wrap(err, "discard the stranded log %s", t)
}

// Stranded lists the stranded logs of a volume on this machine that were moved aside,
// by the names of their snapshots.
func (s *State) Stranded(id lsvd.ID) (names []string, err error) {
	entries, err := os.ReadDir(s.VolumeDir(id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errs.Wrap(err, "list the stranded logs of %s", id)
	}
	for _, e := range entries {
		if _, ok := lsvd.ParseTakeover(e.Name()); ok && e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func (s *State) strandedDir(id lsvd.ID, t lsvd.Takeover) string {
	return filepath.Join(s.VolumeDir(id), t.String())
}

// moveAside moves the log of a volume aside if it is stranded. Conflict: a process has it
// open.
func (s *State) moveAside(ctx context.Context, st store.Store, id lsvd.ID) error {
	logs, err := s.OpenLog(s.LogDir(id))
	if err != nil {
		return err
	}
	lock, err := logs.Lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	t, err := lsvd.Stranded(ctx, st, logs, id)
	if err != nil || t == nil {
		return err
	}
	if err := atomicfile.Rename(s.LogDir(id), s.strandedDir(id, *t)); err != nil {
		return errs.Wrap(err, "move the stranded log aside")
	}
	_, err = s.OpenLog(s.LogDir(id)) // makes an empty one, and both names durable
	return err
}

// lockStranded returns the stranded log of the spec, locked, without what an earlier
// call has left.
func (s *State) lockStranded(ctx context.Context, st store.Store, spec SalvageSpec) (v *catalog.Volume, t lsvd.Takeover, lock io.Closer, err error) {
	if v, err = catalog.Find(ctx, st, spec.Volume); err == nil {
		err = s.bind(v, spec.Store)
	}
	if err != nil {
		return v, t, nil, err
	}
	busy := s.moveAside(ctx, st, v.ID)
	if busy != nil && !errs.Is(busy, errs.Conflict) {
		return v, t, nil, busy
	}
	names, err := s.Stranded(v.ID)
	gone, gerr := filepath.Glob(filepath.Join(s.VolumeDir(v.ID), "*"+discarded))
	err = errors.Join(err, gerr)
	for _, dir := range gone {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	switch {
	case err != nil:
	case len(names) == 0 && busy != nil:
		err = errs.New(errs.Conflict, "a process of this machine has volume %s open: %w", v.Label(), busy).
			WithHint("`r lsvd detach %s --force` closes it, if the daemon has it", v.Label())
	case len(names) == 0 || spec.Snapshot != "" && !slices.Contains(names, spec.Snapshot):
		err = errs.New(errs.NotFound, "this machine has no stranded log of volume %s", v.Label()).
			WithHint("a log is stranded on the machine that had the volume open when another one took it over; is it the right --state-dir?")
	case spec.Snapshot == "" && len(names) > 1:
		err = errs.New(errs.FailedPrecondition, "this machine has %d stranded logs of volume %s", len(names), v.Label()).
			WithHint("name one of them: %s", v.Label()+"@"+strings.Join(names, ", "+v.Label()+"@"))
	case spec.Snapshot == "":
		spec.Snapshot = names[0]
	}
	if err != nil {
		return v, t, nil, err
	}
	t, _ = lsvd.ParseTakeover(spec.Snapshot)
	logs, err := s.OpenLog(s.strandedDir(v.ID, t))
	if err == nil {
		lock, err = logs.Lock()
	}
	if err != nil {
		return v, t, nil, errs.Wrap(err, "stranded log %s", t)
	}
	if err = s.removeLeftover(ctx, st, v.ID, t); err != nil {
		lock.Close()
	}
	return v, t, lock, err
}

// removeLeftover removes the volume that a salvage was making of a stranded log, unless it
// has its name. The caller has the lock of the log.
func (s *State) removeLeftover(ctx context.Context, st store.Store, id lsvd.ID, t lsvd.Takeover) error {
	path := filepath.Join(s.strandedDir(id, t), salvageFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	made, perr := lsvd.ParseID(strings.Trim(string(b), "\"\n"))
	if err = errors.Join(err, perr); err != nil {
		return errs.Wrap(err, "read %s", path)
	}
	v, err := catalog.Find(ctx, st, made.String())
	if errs.Is(err, errs.NotFound) || err == nil && v.Name == "" {
		err = s.Discard(ctx, st, made)
	}
	if err == nil {
		err = os.Remove(path)
	}
	return errs.Wrap(err, "remove the volume of a salvage that did not end")
}

// Discard removes a volume that nothing else uses, its objects and its log here.
func (s *State) Discard(ctx context.Context, st store.Store, id lsvd.ID) error {
	v, err := catalog.Find(ctx, st, id.String())
	if err == nil {
		err = catalog.Delete(ctx, st, v, true)
	}
	if err == nil || errs.Is(err, errs.NotFound) {
		_, _, err = lsvd.Sweep(ctx, st)
	}
	if err == nil {
		err = s.Forget(id)
	}
	return errs.Wrap(err, "remove the temporary volume %s", id)
}
