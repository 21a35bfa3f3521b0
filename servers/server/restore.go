package server

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/api"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/entity/sqlitestore"
	"miren.dev/runtime/entity/transfer"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/backup"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/proc"
)

// RestoredConfig is the file of the state directory with the configuration of the
// server that a backup is of.
const RestoredConfig = "restored.yaml"

// restoringFile is in a state directory whose restore has not ended. No server
// starts there.
func restoringFile(stateDir string) string { return filepath.Join(stateDir, "restoring") }

// Restored returns an error of class FailedPrecondition if the restore into a state
// directory has not ended.
func Restored(stateDir string) error {
	_, err := os.Stat(restoringFile(stateDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errs.New(errs.Unavailable, "look for an interrupted restore: %w", err)
	}
	return errs.New(errs.FailedPrecondition, "%s has a part of a backup: its restore did not end", stateDir).
		WithHint("`r server stop --state-dir %s`, remove the directory, and repeat `r server restore`", stateDir)
}

// Restore fills the state directory of a configuration, which must not exist or be
// empty, with a backup, and returns what the backup has. Nothing runs afterwards.
// After an error or a kill the directory is refused by every command but a stop.
//
// A backup of entities goes to the store that the configuration names; one of the
// private PostgreSQL goes there.
func Restore(ctx context.Context, cfg *config.Config, r io.Reader, identities []age.Identity, log *slog.Logger, progress func(what string)) (*backup.About, error) {
	if err := emptyDir(cfg.StateDir); err != nil {
		return nil, err
	}
	if err := atomicfile.Write(restoringFile(cfg.StateDir), nil, 0o600); err != nil {
		return nil, errs.New(errs.Unavailable, "note the restore: %w", err)
	}
	x := &restore{ctx: ctx, cfg: cfg, logger: log, progress: progress}
	defer func() {
		if x.root != nil {
			x.root.Close()
		}
	}()
	about, err := backup.Read(r, identities, x.entry)
	if err == nil {
		err = x.endImages()
	}
	if err == nil && !x.store {
		err = errs.New(errs.Corrupt, "the backup has no store")
	}
	if cerr := x.close(err != nil); err == nil {
		err = cerr
	}
	if err == nil {
		err = x.finish(about)
	}
	if err != nil && x.in == nil {
		// Nothing but the note is there, so the directory is empty again.
		_ = os.Remove(restoringFile(cfg.StateDir)) // if it stays, the directory is refused
	}
	return about, err
}

func emptyDir(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return errs.New(errs.FailedPrecondition, "make the state directory: %w", err)
	}
	if err := Restored(dir); err != nil {
		return err
	}
	have, err := os.ReadDir(dir)
	if err != nil {
		return errs.New(errs.Unavailable, "read the state directory: %w", err)
	}
	if len(have) > 0 {
		return errs.New(errs.FailedPrecondition, "%s is not empty: it has %s", dir, have[0].Name()).
			WithHint("a backup is restored into an empty directory only: choose another --state-dir")
	}
	return nil
}

// restore is one restore.
type restore struct {
	ctx      context.Context
	cfg      *config.Config
	logger   *slog.Logger
	progress func(string)

	in     *instance.Instance // nil until the first entry
	root   *os.Root           // the state directory: no entry leads out of it
	m      *machine           // nil until the first image
	store  bool
	config []byte
	dirs   []*tar.Header // whose modes are set at the end

	records []containerd.Record
	images  *tar.Writer // of the archive that is imported; nil: none
	pipe    *io.PipeWriter
	done    chan error // of the import
}

// entry takes one entry of the backup.
func (x *restore) entry(about *backup.About, h *tar.Header, r io.Reader) error {
	if err := x.ctx.Err(); err != nil {
		return errs.New(errs.Canceled, "restore: %w", err)
	}
	if x.in == nil {
		if err := x.begin(about); err != nil {
			return err
		}
	}
	top, below, _ := strings.Cut(h.Name, "/")
	if top != dirImages {
		if err := x.endImages(); err != nil {
			return err
		}
	}
	switch top {
	case entryDump, entryStore:
		x.store = true
		x.progress("restore the entities")
		return x.restoreStore(top, r)
	case entryConfig:
		b, err := io.ReadAll(io.LimitReader(r, 1<<20))
		x.config = b
		return err
	case entryImages:
		return json.NewDecoder(r).Decode(&x.records)
	case dirImages:
		return x.image(h, below, r)
	case dirState:
		return x.file(h, below, r)
	}
	return errs.New(errs.FailedPrecondition, "the backup has %s, which this program does not know", h.Name).
		WithHint("restore it with runtime %s, which made it", about.Version)
}

// begin makes the directory that of the installation of the backup.
func (x *restore) begin(about *backup.About) error {
	if !instance.ValidID(about.Instance) {
		return errs.New(errs.Corrupt, "the backup is of installation %q, which is no id", about.Instance)
	}
	if err := nothingRuns(filepath.Join(x.cfg.RunDir, about.Instance)); err != nil {
		return errs.Wrap(err, "the installation %s of the backup is on this machine: stop it with `r server stop --state-dir %s`", about.Instance, about.StateDir)
	}
	if err := atomicfile.Write(filepath.Join(x.cfg.StateDir, "instance-id"), []byte(about.Instance+"\n"), 0o644); err != nil {
		return errs.New(errs.Unavailable, "restore the id: %w", err)
	}
	in, err := instance.Open(x.cfg.StateDir, x.cfg.RunDir)
	if err != nil {
		return err
	}
	if err := in.Lock(); err != nil {
		return err
	}
	x.in = in
	if x.root, err = os.OpenRoot(x.cfg.StateDir); err != nil {
		return errs.New(errs.Unavailable, "open the state directory: %w", err)
	}
	return nil
}

// nothingRuns removes the run directory of an installation, of which no process may
// run: FailedPrecondition otherwise.
func nothingRuns(dir string) error {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if ext := filepath.Ext(path); ext != ".json" && ext != ".pid" {
			return nil
		}
		if p, err := proc.Find(path); err == nil && p != nil {
			return errs.New(errs.FailedPrecondition, "process %d of it runs", p.PID()).WithHint("two installations of one id cannot run on one machine")
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return errs.New(errs.FailedPrecondition, "remove what it left: %w", err)
	}
	return nil
}

func (x *restore) restoreStore(entry string, r io.Reader) error {
	url := x.cfg.Store.URL
	if entry == entryDump && url != "" {
		return errs.New(errs.FailedPrecondition, "the backup is of the private PostgreSQL, and store.url names another store").
			WithHint("restore it without store.url, then copy the store: `r server move-store --to URL`")
	}
	if url == "" {
		pg, stop, err := privateStore(x.ctx, x.in, x.logger)
		if err != nil {
			return err
		}
		defer stop()
		if entry == entryDump {
			return pg.Restore(x.ctx, r)
		}
		url = pg.URL()
	}
	dir, err := tempDir(x.in)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, entryStore)
	below, err := filepath.Rel(x.in.StateDir, path)
	if err != nil {
		return errs.New(errs.Internal, "restore the entities: %w", err)
	}
	if err := x.writeFile(below, 0o600, r); err != nil {
		return err
	}
	source, err := sqlitestore.OpenOffline(x.ctx, path, false)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := openOffline(x.ctx, url, true)
	if err != nil {
		return err
	}
	defer target.Close()
	_, err = transfer.Copy(x.ctx, source, target, transfer.Options{Kinds: api.Kinds()})
	return err
}

// image gives the import one more file.
func (x *restore) image(h *tar.Header, name string, r io.Reader) error {
	if x.images == nil {
		x.progress("restore the images")
		if x.m == nil {
			var err error
			if x.m, err = newMachine(x.cfg, x.in, x.logger); err != nil {
				return err
			}
		}
		pr, pw := io.Pipe()
		x.images, x.pipe, x.done = tar.NewWriter(pw), pw, make(chan error, 1)
		go func() {
			err := x.m.withContainerd(x.ctx, func() error { return x.m.images.ImportAll(x.ctx, x.records, pr) })
			if err != nil {
				pr.CloseWithError(err)
			} else {
				_, err = io.Copy(io.Discard, pr) // padding
			}
			x.done <- err
		}()
	}
	if err := x.images.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: h.Size}); err != nil {
		return errs.Wrap(err, "restore the images")
	}
	_, err := io.Copy(x.images, r)
	return errs.Wrap(err, "restore the images")
}

// endImages ends the import, if there is one.
func (x *restore) endImages() error {
	if x.images == nil {
		return nil
	}
	err := x.images.Close()
	x.images = nil
	x.pipe.CloseWithError(err)
	if derr := <-x.done; derr != nil {
		err = derr
	}
	return errs.Wrap(err, "restore the images")
}

func (x *restore) file(h *tar.Header, name string, r io.Reader) error {
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		x.dirs = append(x.dirs, h)
		if err = x.root.Mkdir(name, 0o700); errors.Is(err, fs.ErrExist) {
			err = nil
		}
	case tar.TypeSymlink:
		err = x.root.Symlink(h.Linkname, name)
	case tar.TypeReg:
		return x.writeFile(name, fs.FileMode(h.Mode).Perm(), r)
	}
	if err != nil {
		return errs.New(errs.Unavailable, "restore %s: %w", h.Name, err)
	}
	return nil
}

// writeFile makes a file of the state directory.
func (x *restore) writeFile(name string, mode fs.FileMode, r io.Reader) error {
	f, err := x.root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err == nil {
		_, err = io.Copy(f, r)
		if merr := f.Chmod(mode); err == nil {
			err = merr
		}
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}
	if err != nil {
		return errs.New(errs.Unavailable, "restore %s: %w", name, err)
	}
	return nil
}

// close ends what the restore started.
func (x *restore) close(failed bool) error {
	if x.images != nil {
		x.pipe.CloseWithError(errs.New(errs.Canceled, "the restore failed"))
		<-x.done
		x.images = nil
	}
	if x.m != nil {
		x.m.close()
	}
	if x.in == nil {
		return nil
	}
	x.in.Unlock()
	if err := os.RemoveAll(x.in.RunDir); err != nil && !failed {
		return errs.New(errs.Unavailable, "remove %s: %w", x.in.RunDir, err)
	}
	return nil
}

// finish makes the directory one that servers accept.
func (x *restore) finish(about *backup.About) error {
	for _, h := range x.dirs {
		if err := x.root.Chmod(strings.TrimPrefix(h.Name, dirState+"/"), fs.FileMode(h.Mode).Perm()); err != nil {
			return errs.New(errs.Unavailable, "restore %s: %w", h.Name, err)
		}
	}
	if err := x.moveDisks(about); err != nil {
		return err
	}
	if len(x.config) > 0 {
		cfg, err := config.Parse(entryConfig, x.config)
		if err != nil {
			return errs.Wrap(err, "the configuration in the backup")
		}
		cfg.StateDir, cfg.RunDir, cfg.Store.URL = x.cfg.StateDir, x.cfg.RunDir, x.cfg.Store.URL
		var b bytes.Buffer
		if err := config.Generate(&b, cfg); err != nil {
			return err
		}
		if err := x.writeFile(RestoredConfig, 0o600, &b); err != nil {
			return err
		}
	}
	// Sandboxes count as stopped, not as lost.
	if err := os.WriteFile(stoppedFile(x.in), nil, 0o644); err != nil {
		return errs.New(errs.Unavailable, "note the stop: %w", err)
	}
	d, err := os.Open(x.cfg.StateDir)
	if err != nil {
		return errs.New(errs.Unavailable, "sync the state directory: %w", err)
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return errs.New(errs.Unavailable, "sync the state directory: %w", err)
	}
	if err := os.Remove(restoringFile(x.cfg.StateDir)); err != nil {
		return errs.New(errs.Unavailable, "end the restore: %w", err)
	}
	return atomicfile.SyncDir(x.cfg.StateDir)
}

// moveDisks has the local logs of disks name the store in the new state directory,
// where they named the one in the old.
func (x *restore) moveDisks(about *backup.About) error {
	files, err := filepath.Glob(x.in.State("lsvd", "volumes", "*", "*.json"))
	if err != nil {
		return errs.New(errs.Internal, "disks: %w", err)
	}
	from, to := "file://"+about.StateDir+"/lsvd/", "file://"+x.cfg.StateDir+"/lsvd/"
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil {
			err = os.WriteFile(f, bytes.ReplaceAll(b, []byte(`"`+from), []byte(`"`+to)), 0o600)
		}
		if err != nil {
			return errs.New(errs.Unavailable, "restore %s: %w", f, err)
		}
	}
	return nil
}
