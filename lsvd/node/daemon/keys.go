package daemon

import (
	"context"
	"path/filepath"
	"slices"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/internal/keyring"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// RotateKey makes the key in the file to the key of an attached volume, in place of
// that in the file from; see [lsvd.RotateKey]. Both paths are absolute. The disk
// stays open, and is opened with the file to from then on. Before the store
// changes, the spec names both files, so whenever the process is killed, the next
// daemon opens the disk.
func (d *Daemon) RotateKey(ctx context.Context, volume, store, from, to string) error {
	x, err := d.find(volume, store)
	if err != nil {
		return err
	}
	var keys [2][]byte
	for i, file := range []string{from, to} {
		if !filepath.IsAbs(file) {
			return errs.New(errs.InvalidArgument, "the key file %q is not an absolute path", file)
		}
		if keys[i], err = host.ReadKey(file); err != nil {
			return err
		}
	}
	x.op.Lock()
	defer x.op.Unlock()
	if x.gone {
		return notAttached(volume)
	}
	before := x.view()
	if before.KeyFile == "" {
		return errs.New(errs.FailedPrecondition, "volume %s is not encrypted", before.label())
	}
	st, _, release, err := d.stores.use(ctx, before.Store)
	if err != nil {
		return err
	}
	defer release()
	both := before
	if to != both.KeyFile && !slices.Contains(both.OtherKeyFiles, to) {
		both.OtherKeyFiles = append(slices.Clone(both.OtherKeyFiles), to)
		if err := d.setSpec(x, both); err != nil {
			return err
		}
	}
	if err := lsvd.RotateKey(ctx, st, x.id, keys[0], keys[1]); err != nil {
		if errs.Is(err, errs.FailedPrecondition) { // nothing has changed
			if serr := d.setSpec(x, before); serr != nil {
				d.logger.Warn("the file of a key that was refused stays among those that are tried", "volume", before.label(), "file", to, "error", serr)
			}
		}
		return err
	}
	return d.setKeyFile(x, to)
}

// takeKeyFile has an attached disk opened with another key file from now on, if its key
// opens the volume. The caller holds x.op.
func (d *Daemon) takeKeyFile(ctx context.Context, st store.Store, x *disk, file string) error {
	s := x.view()
	if file == s.KeyFile || file == "" || s.KeyFile == "" {
		return nil
	}
	key, err := host.ReadKey(file)
	if err != nil {
		return err
	}
	if _, _, err := keyring.Load(ctx, st, x.id, key); err != nil {
		return errs.Wrap(err, "key file %s", file)
	}
	return d.setKeyFile(x, file)
}

// setKeyFile makes file the first that the disk is opened with. The one before is
// kept: its users may put the new key into it, and remove the other file.
func (d *Daemon) setKeyFile(x *disk, file string) error {
	s := x.view()
	if file == s.KeyFile {
		return nil
	}
	s.OtherKeyFiles, s.KeyFile = []string{s.KeyFile}, file
	return d.setSpec(x, s)
}

// setSpec changes the description of an attached disk, durably. The caller holds x.op.
func (d *Daemon) setSpec(x *disk, s Spec) error {
	if err := d.saveSpec(x.id, s); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.spec = s
	return nil
}

// readKey reads the first key of the spec's files that opens the volume; nil for a
// volume that is not encrypted.
func readKey(ctx context.Context, st store.Store, id lsvd.ID, s *Spec) ([]byte, error) {
	if len(s.OtherKeyFiles) == 0 {
		return host.ReadKey(s.KeyFile) // whether it opens the volume, its opening tells
	}
	var first error
	for _, file := range slices.Concat([]string{s.KeyFile}, s.OtherKeyFiles) {
		key, err := host.ReadKey(file)
		if err == nil {
			if _, _, err = keyring.Load(ctx, st, id, key); err == nil {
				return key, nil
			}
			if !errs.Is(err, errs.FailedPrecondition) {
				return nil, err
			}
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}
