package daemon

import (
	"context"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/node/host"
)

// Disks of one store that share segments, as clones do, collect together what
// none of them uses: one alone would only copy what it uses itself. It is
// looked for every compactEvery, and what several share may be compactRatio
// times what they use of it.
const (
	compactEvery = 10 * time.Minute
	compactRatio = 1.43
)

// compact compacts what disks share until ctx ends.
func (d *Daemon) compact(ctx context.Context) {
	tick := time.NewTicker(compactEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		stores := map[string]bool{}
		for _, i := range d.List() {
			if stores[i.Spec.Store] {
				continue
			}
			stores[i.Spec.Store] = true
			if err := d.free(ctx, i.Spec.Store); err != nil && ctx.Err() == nil {
				d.logger.Warn("what disks share was not compacted, it is tried again", "store", i.Spec.Store, "error", err)
			}
		}
	}
}

// free compacts what the open disks of a store share, and deletes what that
// leaves to nobody.
func (d *Daemon) free(ctx context.Context, url string) error {
	n, err := d.compactStore(ctx, url, compactRatio)
	if n == 0 || err != nil {
		return err
	}
	st, _, err := host.OpenStore(ctx, url)
	if err != nil {
		return err
	}
	objects, bytes, err := lsvd.Sweep(ctx, st)
	d.logger.Info("compacted what disks share", "store", url, "segments", n, "objects_deleted", objects, "bytes", bytes)
	return err
}

// openIn are the open disks of a store.
func (d *Daemon) openIn(store string) (open []*lsvd.Device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, x := range d.disks {
		if dev, err := x.device(); err == nil && dev.Err() == nil && x.view().Store == store {
			open = append(open, dev.Device)
		}
	}
	return open
}

// compactStore compacts what the open disks of a store share, and returns how
// many segments were emptied.
func (d *Daemon) compactStore(ctx context.Context, store string, ratio float64) (int, error) {
	total := 0
	for {
		n, err := lsvd.CompactShared(ctx, ratio, d.openIn(store)...)
		total += n
		if n == 0 || err != nil {
			return total, err
		}
	}
}

// Collect collects garbage of an open disk, also what it shares with other
// open disks, until segments hold at most ratio times what is in use. It
// returns how many it emptied.
func (d *Daemon) Collect(ctx context.Context, volume, store string, ratio float64) (segments int, err error) {
	err = d.With(volume, store, func(dev *host.Disk) error {
		x, err := d.find(volume, store)
		if err != nil {
			return err
		}
		url := x.view().Store
		for _, o := range d.openIn(url) {
			err := o.Drain(ctx)
			switch {
			case err == nil:
			case o == dev.Device || ctx.Err() != nil:
				return err
			default: // it is closed, or has failed: what it did not send is not compacted
				d.logger.Info("another disk of the store is left out", "volume", volume, "error", err)
			}
		}
		if segments, err = d.compactStore(ctx, url, ratio); err != nil {
			return err
		}
		n, err := dev.GC(ctx, ratio)
		segments += n
		return err
	})
	return segments, err
}
