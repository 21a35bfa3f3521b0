package lsvd

import (
	"context"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// readBlocks fills p, of whole blocks, from off. While the store does not
// answer it waits, up to Options.ReadTimeout: a short outage delays reads of
// what is not cached and does not fail them. Between attempts it holds
// nothing, so the disk may be closed or fenced meanwhile, and looks anew where
// the blocks are.
func (d *Device) readBlocks(ctx context.Context, p []byte, off int64) error {
	err := d.readNow(ctx, p, off)
	if err == nil || !errs.Is(err, errs.Unavailable) || d.opts.manual {
		return err
	}
	deadline := time.Now().Add(d.opts.ReadTimeout)
	for wait := 50 * time.Millisecond; errs.Is(err, errs.Unavailable) && time.Until(deadline) > 0; wait = min(2*wait, time.Second) {
		d.stats.failures.Add(1)
		t := time.NewTimer(min(wait, time.Until(deadline)))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return errs.Wrap(ctx.Err(), "read disk %s, whose store does not answer", d.vol)
		case <-d.ending:
			t.Stop()
			return err
		}
		err = d.readNow(ctx, p, off)
	}
	return err
}
