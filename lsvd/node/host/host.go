// Package host opens disks on this machine: it keeps the local logs, and says
// why a disk cannot be opened and what to do about it.
//
//	<dir>/id                        random identity of this directory
//	<dir>/volumes/<id>/disk.json    which volume of which store the log is of
//	<dir>/volumes/<id>/log/         the log; the process that has the disk open holds its lock
//	<dir>/volumes/<id>/takeover-<epoch>-<sequence>/  a stranded log, see [State.Salvage]
//	<dir>/volumes/<id>/attached.json  what the daemon opens again (package daemon)
//
// The log of a volume is bound to one store: a copy of a store has volumes of
// the same IDs and epochs, and replaying the log of one onto the other would
// mix them. The log files are removed once the volume is closed clean and is
// not attached, for then they hold nothing.
package host

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/inspect"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// State is the state directory.
type State struct {
	// OpenLog opens the directory of a log; default: [vfs.OpenDir]. Tests have its
	// files fail. It is set before the first disk is opened.
	OpenLog func(path string) (vfs.FS, error)

	dir string
	id  string
}

// Open opens the directory, and makes it if it does not exist.
func Open(dir string) (*State, error) {
	if !filepath.IsAbs(dir) {
		return nil, errs.New(errs.InvalidArgument, "state directory %q must be an absolute path", dir)
	}
	if err := os.MkdirAll(filepath.Join(dir, "volumes"), 0o700); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "make the directory of the disks: %w", err).WithHint("run as root, or choose another --state-dir")
	}
	s := &State{dir: dir, OpenLog: func(path string) (vfs.FS, error) { return vfs.OpenDir(path) }}
	var err error
	s.id, err = identity(filepath.Join(dir, "id"))
	return s, err
}

func identity(path string) (string, error) {
	for range 2 {
		b, err := os.ReadFile(path)
		if err == nil {
			return strings.TrimSpace(string(b)), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", errs.New(errs.Unavailable, "identity of the disk directory: %w", err)
		}
		var id [8]byte
		rand.Read(id[:])
		err = atomicfile.Write(path, []byte(hex.EncodeToString(id[:])+"\n"), 0o600, atomicfile.NoReplace)
		if err != nil && !errors.Is(err, fs.ErrExist) { // another process may be first
			return "", errs.New(errs.Unavailable, "identity of the disk directory: %w", err)
		}
	}
	return "", errs.New(errs.Internal, "%s appears and vanishes", path)
}

// Dir is the directory.
func (s *State) Dir() string { return s.dir }

// ID is the random identity of the directory.
func (s *State) ID() string { return s.id }

// VolumeDir is where the log and the records of a volume are.
func (s *State) VolumeDir(id lsvd.ID) string { return filepath.Join(s.dir, "volumes", id.String()) }

// LogDir is where the log of a volume is.
func (s *State) LogDir(id lsvd.ID) string { return filepath.Join(s.VolumeDir(id), "log") }

// origin is disk.json.
type origin struct {
	Version int    `json:"version"` // 1
	Store   string `json:"store"`
	Name    string `json:"name,omitempty"`
}

// Spec says which disk to open and how.
type Spec struct {
	Store      string // URL, as OpenStore returns it
	Volume     string // name or ID
	Key        []byte
	TakeOver   bool // open it although it is open elsewhere, or was; damage is refused
	AcceptLoss bool // open it although data is lost or damaged
	Options    lsvd.Options
}

// Disk is an open disk of this machine.
type Disk struct {
	*lsvd.Device
	Volume   *catalog.Volume // as it was found
	Recovery lsvd.Recovery

	state *State
	st    store.Store
}

// Open opens a disk of the store. Its errors say what to do.
func (s *State) Open(ctx context.Context, st store.Store, spec Spec) (*Disk, error) {
	v, err := catalog.Find(ctx, st, spec.Volume)
	if err != nil {
		return nil, err
	}
	if err := CheckKey(v, spec.Key); err != nil {
		return nil, err
	}
	if err := s.bind(v, spec.Store); err != nil {
		return nil, err
	}
	logs, err := s.OpenLog(s.LogDir(v.ID))
	if err != nil {
		return nil, err
	}
	opts := spec.Options
	opts.Key = spec.Key
	dev, rec, err := lsvd.Open(ctx, st, logs, v.ID, opts)
	if err != nil && rec.Stranded != nil {
		if err := s.moveAside(ctx, st, v.ID); err != nil {
			return nil, s.explain(ctx, st, v, err)
		}
		if opts.Logger != nil {
			opts.Logger.Warn("the local log has writes that are not in the volume since another machine took it over: it was moved aside, `r lsvd salvage` makes a volume of it",
				"volume", v.Label(), "snapshot", rec.Stranded.String(), "dir", s.strandedDir(v.ID, *rec.Stranded))
		}
		dev, rec, err = lsvd.Open(ctx, st, logs, v.ID, opts)
	}
	if err != nil && (rec.LostLog || damaged(rec)) {
		if err = s.judge(ctx, st, v, spec, rec, err); err == nil {
			opts.WithoutLog, opts.AcceptLoss = rec.LostLog, spec.AcceptLoss
			if dev, rec, err = lsvd.Open(ctx, st, logs, v.ID, opts); err != nil && damaged(rec) {
				err = refuseDamage(v, rec, err)
			}
		}
	}
	if err != nil {
		return nil, s.explain(ctx, st, v, err)
	}
	s.announce(ctx, st, v, dev.Owner(), opts)
	return &Disk{Device: dev, Volume: v, Recovery: rec, state: s, st: st}, nil
}

// bind ties the log directory of a volume to a store.
func (s *State) bind(v *catalog.Volume, url string) error {
	have, path, err := s.origin(v, url)
	switch {
	case err == nil:
		if storeName(have.Store) == storeName(url) {
			return nil
		}
		logs, err := os.ReadDir(s.LogDir(v.ID))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return errs.New(errs.Unavailable, "read the log directory: %w", err)
		}
		stranded, err := s.Stranded(v.ID)
		if err != nil {
			return err
		}
		if len(stranded) > 0 || slices.ContainsFunc(logs, func(e fs.DirEntry) bool { return e.Name() != "lock" }) {
			return errs.New(errs.FailedPrecondition, "the local log of volume %s belongs to the store %s, not to %s", v.Label(), have.Store, url).
				WithHint("use --store %s; if that store has moved, change it in %s", have.Store, path)
		}
	case !errs.Is(err, errs.NotFound):
		return err
	}
	return WriteJSON(path, origin{Version: 1, Store: url, Name: v.Name})
}

// origin reads disk.json of a volume, which path is. NotFound: there is none.
// url is the store that the caller means.
func (s *State) origin(v *catalog.Volume, url string) (have origin, path string, err error) {
	path = filepath.Join(s.VolumeDir(v.ID), "disk.json")
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return have, path, errs.New(errs.NotFound, "%s does not exist", path)
	case errors.Is(err, fs.ErrPermission):
		return have, path, errs.New(errs.PermissionDenied, "read %s: %w", path, err)
	case err != nil:
		return have, path, errs.New(errs.Unavailable, "read %s: %w", path, err)
	}
	if err := json.Unmarshal(b, &have); err != nil || have.Version != 1 {
		return have, path, errs.New(errs.Corrupt, "%s cannot be read: version %d, %v", path, have.Version, err).
			WithHint("if the log beside it is of this volume in %s, write that into the file; see docs/lsvd.md", url)
	}
	return have, path, nil
}

// CheckLog checks the log of a volume of the store, if this machine has it in
// its state directory dir, which need not exist; the zero report says that it
// does not. PermissionDenied: the caller may not know.
func CheckLog(ctx context.Context, dir string, st store.Store, v *catalog.Volume, url string, key []byte) (inspect.LogReport, error) {
	s := &State{dir: dir}
	have, _, err := s.origin(v, url)
	if errs.Is(err, errs.NotFound) || err == nil && storeName(have.Store) != storeName(url) {
		return inspect.LogReport{}, nil
	}
	if err != nil {
		return inspect.LogReport{}, err
	}
	if _, err := os.Stat(s.LogDir(v.ID)); errors.Is(err, fs.ErrNotExist) {
		return inspect.LogReport{}, nil
	}
	logs, err := vfs.OpenDir(s.LogDir(v.ID))
	if err != nil {
		return inspect.LogReport{}, err
	}
	return inspect.CheckLog(ctx, st, logs, v.ID, key)
}

// judge decides about a disk that has lost data. It returns nil if the caller has
// accepted the loss; otherwise its error says what is lost.
func (s *State) judge(ctx context.Context, st store.Store, v *catalog.Volume, spec Spec, rec lsvd.Recovery, err error) error {
	kept := ""
	if names, err := s.Stranded(v.ID); err == nil && len(names) > 0 {
		kept = "; this machine has writes from before that: `r lsvd salvage " + v.Label() + "` makes a volume of them"
	}
	owner := catalog.OwnerOf(ctx, st, v)
	elsewhere := rec.LostLog && (owner == nil || owner.State != s.id)
	switch {
	case spec.AcceptLoss, elsewhere && spec.TakeOver:
		return nil
	case elsewhere && owner != nil:
		return errs.New(errs.FailedPrecondition, "volume %s is open elsewhere: %s; or it was when that machine died", v.Label(), owner).
			With("reason", "open_elsewhere").
			WithHint("detach it there (`r lsvd detach %s`), or copy its log directory here. With --take-over this machine gets what the store has: "+
				"writes there that had not reached the store are lost, and further ones fail%s", v.Label(), kept)
	case elsewhere:
		return errs.New(errs.FailedPrecondition, "volume %s is open elsewhere, or was when its machine died: its log (epoch %d) is not on this machine", v.Label(), v.Epoch).
			With("reason", "open_elsewhere").
			WithHint("open it where it was open last. With --take-over this machine gets what the store has: writes that had not reached the store are lost%s", kept)
	case rec.LostLog:
		return errs.New(errs.FailedPrecondition, "the local log of volume %s is lost: it should be in %s", v.Label(), s.LogDir(v.ID)).
			With("reason", "lost_log").
			WithHint("restore the directory. With --accept-loss the disk goes back to what the store has: an exact state of a moment before, " +
				"without the last writes (those of up to some seconds, or of a whole outage of the store)")
	}
	return refuseDamage(v, rec, err)
}

// damaged reports that an opening found damage, be it of objects that are missing.
func damaged(rec lsvd.Recovery) bool { return rec.LostAfter || rec.Damaged || len(rec.Missing) > 0 }

// refuseDamage says what to do about damage, which err names.
func refuseDamage(v *catalog.Volume, rec lsvd.Recovery, err error) error {
	var e *errs.Error
	if !errors.As(err, &e) {
		return err
	}
	elsewhere, flags := "", "--accept-loss"
	if rec.LostLog {
		elsewhere, flags = " The machine that had the volume open last may have the writes in its log: open the volume there again.", "--take-over and --accept-loss"
	}
	e = e.With("reason", "damaged")
	const restore = "restore what is missing, for example from a copy of the store.%s With %s "
	if len(rec.Missing) > 0 {
		return e.WithHint(restore+"reads of what only these objects have give errors, and the rest works; `r lsvd check %s` says which parts of the disk that is",
			elsewhere, flags, v.Label())
	}
	return e.WithHint(restore+"the disk goes back to the exact state before the damage, at sequence number %d or later; all writes after it are lost", elsewhere, flags, v.Durable)
}

// explain adds which process has the disk open here.
func (s *State) explain(ctx context.Context, st store.Store, v *catalog.Volume, err error) error {
	if !errs.Is(err, errs.Conflict) {
		return err
	}
	var owner *catalog.Owner
	if now, err := catalog.Find(ctx, st, v.ID.String()); err == nil {
		owner = catalog.OwnerOf(ctx, st, now)
	}
	if owner == nil {
		return errs.New(errs.Conflict, "volume %s is in use: %w", v.Label(), err).With("reason", "in_use").
			WithHint("`r lsvd list --attached` shows what the daemon has; `r lsvd detach %s` gives it free", v.Label())
	}
	return errs.New(errs.Conflict, "volume %s is in use %s: %w", v.Label(), owner, err).With("reason", "in_use").
		WithHint("`r lsvd detach %s` gives it free, if the daemon has it; else end that process", v.Label())
}

// announce records that this machine has the disk. The record is advice only, so the
// disk works without it.
func (s *State) announce(ctx context.Context, st store.Store, v *catalog.Volume, claim string, opts lsvd.Options) {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown machine"
	}
	err = catalog.SetOwner(ctx, st, v.ID, catalog.Owner{Host: host, State: s.id, PID: os.Getpid(), Since: time.Now(), Claim: claim})
	if err != nil && opts.Logger != nil {
		opts.Logger.Warn("the owner of the disk could not be recorded", "volume", v.ID.String(), "error", err)
	}
}

// Close sends what is unsent and closes the disk. If that fails before ctx
// ends, the disk is closed all the same, and the log keeps the rest.
func (d *Disk) Close(ctx context.Context) error {
	if err := d.Device.Close(ctx); err != nil {
		return err
	}
	return d.state.forget(d.Volume.ID)
}

// forget removes the log files of a volume that is closed clean, unless it is
// attached or another process has opened it meanwhile. The directory and its
// lock stay: a process that opens the volume at this time must not lock a removed file.
func (s *State) forget(id lsvd.ID) error {
	if _, err := os.Stat(filepath.Join(s.VolumeDir(id), AttachedFile)); err == nil {
		return nil // it will be opened again, and new files take time to write
	}
	logs, err := vfs.OpenDir(s.LogDir(id))
	if err != nil {
		return err
	}
	lock, err := logs.Lock()
	if err != nil {
		return nil // in use again
	}
	defer lock.Close()
	names, err := logs.List()
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := logs.Remove(n); err != nil {
			return err
		}
	}
	return nil
}

// Forget removes the log and the records of a deleted volume from this machine.
func (s *State) Forget(id lsvd.ID) error {
	return errs.Wrap(os.RemoveAll(s.VolumeDir(id)), "remove the log of %s", id)
}

// AttachedFile is in the directory of a volume that the daemon opens again.
const AttachedFile = "attached.json"

// WriteJSON makes a small file that is whole, old or new, after any crash.
func WriteJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return errs.New(errs.Internal, "encode %s: %w", path, err)
	}
	if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
		err = atomicfile.Write(path, append(b, '\n'), 0o600)
	}
	return errs.Wrap(err, "write %s", path)
}

// CheckKey reports a key that is missing, or given without need. Whether it is the
// right one, only the opening of the volume tells.
func CheckKey(v *catalog.Volume, key []byte) error {
	switch {
	case v.Encrypted && key == nil:
		return errs.New(errs.FailedPrecondition, "volume %s is encrypted", v.Label()).WithHint("give its key with --key-file")
	case !v.Encrypted && key != nil:
		return errs.New(errs.FailedPrecondition, "volume %s is not encrypted, and a key was given", v.Label()).WithHint("leave out --key-file")
	}
	return nil
}

// ReadKey reads a key of 32 bytes, as they are or as 64 hexadecimal digits.
func ReadKey(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errs.New(errs.NotFound, "read the key: there is no file %s", path)
	}
	if err != nil {
		return nil, errs.Wrap(err, "read the key")
	}
	if len(b) == 32 {
		return b, nil
	}
	if key, err := hex.DecodeString(string(bytes.TrimSpace(b))); err == nil && len(key) == 32 {
		return key, nil
	}
	return nil, errs.New(errs.InvalidArgument, "%s holds no key: it must have 32 bytes, or 64 hexadecimal digits", path)
}

// NewKey makes a key and writes it, durably, to a file that does not exist yet.
func NewKey(path string) ([]byte, error) {
	key := make([]byte, 32)
	rand.Read(key)
	err := atomicfile.Write(path, []byte(hex.EncodeToString(key)+"\n"), 0o600, atomicfile.NoReplace)
	return key, errs.Wrap(err, "make the key file")
}
