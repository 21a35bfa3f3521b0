package server

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"filippo.io/age"

	"miren.dev/runtime/api"
	"miren.dev/runtime/components/postgres"
	"miren.dev/runtime/entity/sqlitestore"
	"miren.dev/runtime/entity/transfer"
	"miren.dev/runtime/pkg/backup"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/pkg/version"
	"miren.dev/runtime/servers/disks"
)

// Entries of a backup, besides those of package backup.
const (
	entryDump   = "store.pgdump" // of the private PostgreSQL
	entryStore  = "store.db"     // SQLite, copied from another store
	entryConfig = "config.yaml"  // of the last server
	entryImages = "images.json"  // names and labels of the images in images/
	dirImages   = "images"       // an OCI archive, file by file
	dirState    = "state"        // files of the state directory
)

// Stores in backup.About.
const (
	savedDump   = "postgres"
	savedEntity = "entities"
)

// leftOut is what of the state directory a backup does not have as files: the store
// and the images are saved in their own way, the rest is made again, belongs to
// processes of this machine, or is the memory of sandboxes.
var leftOut = map[string]bool{
	"pg": true, "containerd": true, "buildkit": true, "tmp": true, "agents": true, "cni": true, "network.json": true, "ingress": true, "git": true,
	"docker": true, "kubernetes": true, "paused": true, "snapshots": true, "server.lock": true, "use.lock": true, "server.yaml": true,
	"stopped": true, "instance-id": true, RestoredConfig: true,
}

// skipState says what AddTree leaves out. Of the logs it saves those of builds, which
// entities name, and the kept output of apps.
func skipState(withDisks bool) func(string) bool {
	return func(path string) bool {
		top, below, _ := strings.Cut(path, "/")
		if top == "logs" {
			kind, _, _ := strings.Cut(below, "/")
			return kind != "" && kind != "builds" && kind != "apps"
		}
		return leftOut[top] || top == "lsvd" && !withDisks || strings.HasSuffix(path, "/lock")
	}
}

// BackupOptions are the options of Backup.
type BackupOptions struct {
	Recipients   []age.Recipient // none: not encrypted
	WithoutDisks bool            // leave out the disks of the state directory
	Progress     func(what string)
}

// Backup writes everything of an installation that cannot be made again. The server
// must not run, so that nothing changes meanwhile: FailedPrecondition otherwise. Apps
// may go on (r server stop --keep-running), unless disks are to be saved: those must
// be detached.
func Backup(ctx context.Context, cfg *config.Config, in *instance.Instance, w io.Writer, log *slog.Logger, o BackupOptions) (about *backup.About, err error) {
	if err := lockWhole(in); err != nil {
		return nil, err
	}
	defer in.Unlock()
	if _, err := os.Stat(in.State(runnerDir)); err == nil {
		return nil, errs.New(errs.FailedPrecondition, "%s is the state of a runner, which has nothing to save", in.StateDir).
			WithHint("back up the server that it belongs to")
	}
	if !o.WithoutDisks {
		if p, err := proc.Find(disks.Record(in.Socket("lsvd"))); err != nil || p != nil {
			return nil, errs.New(errs.FailedPrecondition, "disks are attached: the disk daemon runs").
				WithHint("stop what uses them (`r server stop`), or leave them out with --without-disks and save them with `r disk backup`")
		}
	}
	m, err := newMachine(cfg, in, log)
	if err != nil {
		return nil, err
	}
	defer m.close()
	about = &backup.About{Version: version.Get().Version, Instance: in.ID, StateDir: in.StateDir, Time: time.Now().UTC(), Disks: !o.WithoutDisks}
	tmp, err := tempDir(in)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	o.Progress("save the entities")
	store, err := m.saveStore(ctx, tmp, about)
	if err != nil {
		return nil, err
	}
	b, err := backup.NewWriter(w, *about, o.Recipients...)
	if err != nil {
		return nil, err
	}
	if err := addFile(b, store, filepath.Base(store)); err != nil {
		return nil, err
	}
	if err := addFile(b, in.State("server.yaml"), entryConfig); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	o.Progress("save the images")
	if err := m.saveImages(ctx, b); err != nil {
		return nil, err
	}
	o.Progress("save keys, sources and disks")
	if err := b.AddTree(in.StateDir, dirState, skipState(about.Disks)); err != nil {
		return nil, err
	}
	return about, b.Close()
}

// lockWhole locks an installation that is complete.
func lockWhole(in *instance.Instance) error {
	if err := in.Lock(); err != nil {
		return err
	}
	if err := Restored(in.StateDir); err != nil {
		in.Unlock()
		return err
	}
	return nil
}

func tempDir(in *instance.Instance) (string, error) {
	if err := os.MkdirAll(in.State("tmp"), 0o700); err != nil {
		return "", errs.New(errs.Unavailable, "make a temporary directory: %w", err)
	}
	dir, err := os.MkdirTemp(in.State("tmp"), "backup-")
	if err != nil {
		return "", errs.New(errs.Unavailable, "make a temporary directory: %w", err)
	}
	return dir, nil
}

func addFile(b *backup.Writer, path, name string) error {
	f, err := os.Open(path)
	if err != nil {
		return errs.New(errs.Unavailable, "save %s: %w", name, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return errs.New(errs.Unavailable, "save %s: %w", name, err)
	}
	return b.Add(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: st.Size()}, f)
}

// privateStore starts the private PostgreSQL if it does not run. stop ends it if it
// did not run before.
func privateStore(ctx context.Context, in *instance.Instance, log *slog.Logger) (pg *postgres.Server, stop func(), err error) {
	private := postgres.ConfigFor(in, log.With("component", "postgres"))
	running, err := postgres.Attach(private)
	if err != nil {
		return nil, nil, err
	}
	if pg, err = postgres.Start(ctx, private); err != nil {
		return nil, nil, errs.Wrap(err, "PostgreSQL")
	}
	if running != nil {
		return pg, func() {}, nil
	}
	return pg, func() {
		if serr := pg.Stop(context.WithoutCancel(ctx)); serr != nil {
			log.Warn("PostgreSQL stays running", "error", serr)
		}
	}, nil
}

// saveStore writes the store of the server to a file in dir, named as its entry.
func (m *machine) saveStore(ctx context.Context, dir string, about *backup.About) (string, error) {
	url := m.cfg.Store.URL
	if url == "" {
		if _, err := os.Stat(m.in.State("pg", "data")); err != nil {
			return "", errs.New(errs.FailedPrecondition, "%s has no store: %w", m.in.StateDir, err).WithHint("start the server once, or name its store with --store-url")
		}
		pg, stop, err := privateStore(ctx, m.in, m.logger)
		if err != nil {
			return "", err
		}
		defer stop()
		s, err := openOffline(ctx, pg.URL(), false)
		if err != nil {
			return "", err
		}
		// Reading every entity also finds what cannot be read before it is needed.
		rev, err := s.Read(ctx, func(transfer.Item) error { return nil })
		s.Close()
		if err != nil {
			return "", errs.Wrap(err, "read the store")
		}
		about.Store, about.Revision, about.History = savedDump, int64(rev), true
		path := filepath.Join(dir, entryDump)
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
		if err != nil {
			return "", errs.New(errs.Unavailable, "save the store: %w", err)
		}
		defer f.Close()
		return path, pg.Dump(ctx, f)
	}
	path := filepath.Join(dir, entryStore)
	source, err := openOffline(ctx, url, false)
	if err != nil {
		return "", err
	}
	defer source.Close()
	rev, err := source.Read(ctx, func(transfer.Item) error { return nil })
	if err != nil {
		return "", errs.Wrap(err, "read the store")
	}
	target, err := sqlitestore.OpenOffline(ctx, path, true)
	if err != nil {
		return "", err
	}
	defer target.Close()
	about.Store, about.Revision = savedEntity, int64(rev)
	_, err = transfer.Copy(ctx, source, target, transfer.Options{Kinds: api.Kinds()})
	return path, err
}

// withContainerd calls f while containerd runs.
func (m *machine) withContainerd(ctx context.Context, f func() error) error {
	was, err := m.containerd.Running()
	if err != nil {
		return err
	}
	if err := m.containerd.Start(ctx); err != nil {
		return errs.Wrap(err, "containerd")
	}
	err = f()
	if !was {
		if serr := m.containerd.Stop(context.WithoutCancel(ctx)); err == nil && serr != nil {
			return errs.Wrap(serr, "containerd")
		}
	}
	return err
}

// saveImages adds the images of the installation.
func (m *machine) saveImages(ctx context.Context, b *backup.Writer) error {
	return m.withContainerd(ctx, func() error {
		records, err := m.images.List(ctx, nil)
		if err != nil || len(records) == 0 {
			return err
		}
		text, err := json.Marshal(records)
		if err != nil {
			return errs.New(errs.Internal, "save the images: %w", err)
		}
		h := &tar.Header{Name: entryImages, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(text))}
		if err := b.Add(h, strings.NewReader(string(text))); err != nil {
			return err
		}
		pr, pw := io.Pipe()
		go func() { pw.CloseWithError(m.images.ExportAll(ctx, records, pw)) }()
		defer pr.Close()
		for tr := tar.NewReader(pr); ; {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				_, err = io.Copy(io.Discard, pr) // an error of the export comes at its end
				return err
			}
			if err != nil {
				return errs.Wrap(err, "save the images")
			}
			if h.Typeflag != tar.TypeReg {
				continue
			}
			if err := b.Add(&tar.Header{Name: dirImages + "/" + h.Name, Typeflag: tar.TypeReg, Mode: 0o600, Size: h.Size}, tr); err != nil {
				return err
			}
		}
	})
}
