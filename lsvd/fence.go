package lsvd

import (
	"bytes"
	"context"
	"crypto/rand"

	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// Fenced says what a fence found.
type Fenced struct {
	Clean    bool   // the volume was closed and the store has everything: there was nothing to fence
	Epoch    uint64 // of the opening whose right to write has ended
	Segments int64  // that the store has of it after the manifest, up to the fence
}

// Fence ends the right of the process that has a volume open to write it,
// without opening it: the process fails with its next segment or manifest, or
// within Options.OwnerCheck. No acknowledged write is lost by that: until
// another machine opens the volume, the one with the log may open it again and has
// all. A repeated call completes a fence that was interrupted. key is that of an
// encrypted volume, whose manifest needs it.
func Fence(ctx context.Context, st store.Store, id ID, key []byte) (Fenced, error) {
	m, err := claimAway(ctx, st, id, key)
	if err != nil || m.Clean {
		return Fenced{Clean: err == nil}, errs.Wrap(err, "fence volume %s", id)
	}
	f := Fenced{Epoch: m.ChainEpoch}
	if m.ChainEpoch == 0 {
		return f, nil // its first opening has not begun to write
	}
	f.Segments, err = endChain(ctx, st, name.Ref{Volume: id, Kind: name.Data, Epoch: m.ChainEpoch, Num: m.ChainNext})
	return f, errs.Wrap(err, "fence volume %s", id)
}

// fenceOwner begins the owner in the manifest that a fence writes. The other bytes are
// random, as are all of a process's.
const fenceOwner = "lsvd fence"

// claimAway writes the manifest with an owner that no process is. It returns
// the manifest, unchanged if the volume is closed.
func claimAway(ctx context.Context, st store.Store, id ID, key []byte) (*manifest.Manifest, error) {
	var owner [16]byte
	rand.Read(owner[copy(owner[:], fenceOwner):])
	var err error
	for range claims {
		m, v, lerr := manifest.Open(ctx, st, id, "", key)
		switch {
		case lerr != nil:
			return nil, lerr
		case m.Clean || m.Owner == owner:
			return m, nil
		}
		m.Epoch, m.Owner = m.Epoch+1, owner
		m.Revision++
		if _, err = st.Replace(ctx, name.Manifest(id), m.Encode(name.Manifest(id)), v); err == nil {
			return m, nil
		}
		if !errs.Is(err, errs.Conflict) && !errs.Is(err, errs.Unavailable) {
			return nil, err
		}
	}
	return nil, err
}

// endChain creates the fence of a chain at the first number from ref on that the
// store does not have. It returns how many segments are before it.
func endChain(ctx context.Context, st store.Store, ref name.Ref) (segments int64, err error) {
	for ; ; segments++ {
		fence := segment.Fence(ref)
		_, err := st.Create(ctx, ref.Key(), fence)
		if !errs.Is(err, errs.AlreadyExists) {
			return segments, err
		}
		have, err := st.GetRange(ctx, ref.Key(), 0, int64(len(fence))+1)
		if err != nil || bytes.Equal(have, fence) {
			return segments, err
		}
		ref.Num++
	}
}

// keptFences is how many fences of a volume stay, those of its last openings. An owner
// from before them that was paused since then asks whether it is one when it goes on;
// see publish.
const keptFences = 64

// doomFences dooms the oldest fences. The caller is Open, after its manifest is written.
func (d *Device) doomFences(ctx context.Context, fences []name.Ref) {
	for _, r := range fences[:max(0, len(fences)-keptFences)] {
		d.doomed = append(d.doomed, doomed{ref: r, unshared: true})
	}
	if len(d.doomed) > 0 {
		d.deleteLater(ctx)
	}
}

// create makes an object that only this device makes. If it is there already
// with another content, a later owner of the volume has fenced this one.
func (d *Device) create(ctx context.Context, ref name.Ref, data []byte) error {
	_, err := d.st.Create(ctx, ref.Key(), data)
	if errs.Is(err, errs.AlreadyExists) {
		have, _, gerr := d.st.Get(ctx, ref.Key())
		if gerr != nil {
			return gerr
		}
		if !bytes.Equal(have, data) {
			if x, _, err := segment.Open(ref, nil, int64(len(have)), have); err == nil && x.Fence {
				owner := d.owner // the message is then that of most cases
				if m, _, err := manifest.LoadWith(ctx, d.st, name.Manifest(d.vol), d.keys); err == nil {
					owner = m.Owner
				}
				return d.fenced(owner)
			}
			return errs.New(errs.Unavailable, "object %s reads as something that was not written", ref)
		}
		err = nil
	}
	if err == nil {
		d.stats.stored.Add(int64(len(data)))
	}
	return err
}

// fenced fails the disk, whose volume the manifest gives to another owner.
func (d *Device) fenced(owner [16]byte) error {
	if bytes.HasPrefix(owner[:], []byte(fenceOwner)) {
		return d.fail(errs.New(errs.Conflict, "volume %s was fenced: a fence (`r lsvd fence`) has ended the right of this process to write it", d.vol).
			WithHint("what the store lacks is in the local log: to go on with every write, open the volume here again before another machine does; else leave it to that machine"))
	}
	return d.fail(errs.New(errs.Conflict, "volume %s was opened by another process", d.vol).
		WithHint("only the newest opener may use a volume; open it again to take it over"))
}

// succeeded reports whether a claim is of an owner that opened the volume after
// this device.
func (d *Device) succeeded(epoch uint64, owner [16]byte) bool {
	return epoch > d.epoch || epoch == d.epoch && owner != d.owner
}
