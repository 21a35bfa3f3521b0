package lsvd

import (
	"context"
	"math/rand/v2"
	"time"

	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/pkg/errs"
)

// A disk that writes learns from the store that another owner has opened its
// volume: it cannot create the next segment of its chain, or write the manifest.
// One that is only read would never ask, and serve what it had for ever. So
// when the store has not confirmed for Options.OwnerCheck that the volume is
// still its own, the disk asks: it reads the first bytes of the manifest.
//
// Only a manifest that is whole and of another owner is an answer. A store that
// cannot be asked is none, nor is a manifest that is not there, for so it looks
// where a directory is not mounted: the next write will know more.

// watchOwner asks who the owner is, when it is due, until ctx ends or the disk
// is lost. Disks of one process do not ask at the same time, also if they were
// opened together.
func (d *Device) watchOwner(ctx context.Context) {
	every := d.opts.OwnerCheck
	for wait := every; ; {
		t := time.NewTimer(wait + rand.N(every/4+1))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		if left := every - d.sinceConfirmed(); left > 0 {
			wait = min(left, every)
			continue
		}
		wait = every
		actx, cancel := context.WithTimeout(ctx, every)
		err := d.askOwner(actx)
		cancel()
		if errs.Is(d.failure(), errs.Conflict) {
			return
		}
		if err != nil && ctx.Err() == nil {
			d.logger.Debug("the store did not confirm the owner of the volume", "volume", d.vol.String(), "error", err)
		}
	}
}

// askOwner fails the disk if the volume has another owner.
func (d *Device) askOwner(ctx context.Context) error {
	began := d.opts.Now()
	b, err := d.st.GetRange(ctx, name.Manifest(d.vol), 0, manifest.HeadSize)
	if err != nil {
		return err
	}
	if epoch, owner, ok := manifest.Claim(b); ok && epoch == d.epoch && owner == d.owner {
		d.mu.Lock()
		d.confirmed = began
		d.mu.Unlock()
		return nil
	}
	// These bytes have no checksum of their own: the whole must say the same.
	m, _, err := manifest.LoadWith(ctx, d.st, name.Manifest(d.vol), d.keys)
	if err != nil {
		return err
	}
	if d.succeeded(m.Epoch, m.Owner) {
		return d.fenced(m.Owner)
	}
	return errs.New(errs.Unavailable, "manifest of %s was read damaged or stale", d.vol)
}

// sinceConfirmed is how long the store has not confirmed that the volume is the
// device's.
func (d *Device) sinceConfirmed() time.Duration {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.opts.Now().Sub(d.confirmed)
}
