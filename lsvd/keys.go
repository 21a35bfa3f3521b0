package lsvd

import (
	"context"

	"miren.dev/runtime/lsvd/internal/keyring"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

func checkKey(user []byte) error {
	if user != nil && len(user) != keyring.KeySize {
		return errs.New(errs.InvalidArgument, "key has %d bytes, not %d", len(user), keyring.KeySize)
	}
	return nil
}

// createVolume creates the manifest m of a new volume and, if there is a user's
// key, its data keys: one of its own, and from's of the volumes that m names
// objects of. The manifest is first, as [Sweep] deletes keys without one. If the
// process is killed in between, the volume cannot be opened; it is empty, or a
// clone.
func createVolume(ctx context.Context, st store.Store, m *manifest.Manifest, from *keyring.Ring, user []byte) error {
	if err := checkKey(user); err != nil {
		return err
	}
	if user != nil {
		var err error
		if m.Keys, err = keyring.New(m.Volume, from, m.Volumes()); err != nil {
			return err
		}
		m.Encrypted = true
	}
	if err := createNamed(ctx, st, name.Manifest(m.Volume), m.Encode(name.Manifest(m.Volume))); err != nil || user == nil {
		return err
	}
	err := createNamed(ctx, st, name.Keys(m.Volume), m.Keys.Wrap(user))
	if err != nil {
		_ = st.Delete(context.WithoutCancel(ctx), name.Manifest(m.Volume)) // what stays can be deleted by its ID
	}
	return err
}

// RotateKey makes to the user's key of an encrypted volume and its snapshots, in
// place of from. It replaces one small object: data keys stay, so nothing is
// written again, and the volume may be open. Whenever it ends early, exactly one
// of the two keys opens the volume; it succeeds if that is to already. Clones
// and copies in other stores have keys of their own.
//
// FailedPrecondition: from is not the key, or the volume is not encrypted.
// Conflict: another rotation was faster.
func RotateKey(ctx context.Context, st store.Store, id ID, from, to []byte) error {
	for _, key := range [][]byte{from, to} {
		if key == nil {
			return errs.New(errs.InvalidArgument, "rotate the key of volume %s: a key is missing", id)
		}
		if err := checkKey(key); err != nil {
			return err
		}
	}
	keys, version, err := keyring.Load(ctx, st, id, from)
	switch {
	case errs.Is(err, errs.NotFound):
		if _, _, err = manifest.Open(ctx, st, id, "", from); err == nil { // it says what is wrong
			err = errs.New(errs.Unavailable, "the keys of volume %s were just created", id)
		}
		return err
	case errs.Is(err, errs.FailedPrecondition):
		if _, _, after := keyring.Load(ctx, st, id, to); after == nil {
			return nil
		}
	}
	if err == nil {
		if _, err = st.Replace(ctx, name.Keys(id), keys.Wrap(to), version); errs.Is(err, errs.Unavailable) || errs.Is(err, errs.Conflict) {
			// An attempt of unknown outcome may have gone through.
			if _, _, after := keyring.Load(ctx, st, id, to); after == nil {
				return nil
			}
		}
	}
	return errs.Wrap(err, "rotate the key of volume %s", id)
}
