package daemon

import (
	"context"

	"miren.dev/runtime/lsvd/node/host"
)

// Collect collects garbage of an open disk until segments hold at most ratio
// times the bytes in use. It returns how many it emptied.
func (d *Daemon) Collect(ctx context.Context, volume, store string, ratio float64) (segments int, err error) {
	err = d.With(volume, store, func(dev *host.Disk) (err error) {
		segments, err = collect(ctx, dev, ratio)
		return err
	})
	return segments, err
}

func collect(ctx context.Context, dev *host.Disk, ratio float64) (int, error) {
	if err := dev.Drain(ctx); err != nil {
		return 0, err
	}
	return dev.GC(ctx, ratio)
}
