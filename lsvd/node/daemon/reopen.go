package daemon

import (
	"context"
	"time"

	"miren.dev/runtime/lsvd/frontend/loop"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/pkg/errs"
)

// How long to wait before a disk that cannot be opened is tried again. Users of
// its block device wait as long after the store is back.
const (
	firstRetry = 500 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// reopen tries to open an attached disk until it succeeds. First it claims
// the block device, whose users wait until the disk is open.
func (d *Daemon) reopen(ctx context.Context, x *disk) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if !x.begin(stop) {
		return
	}
	claimed := false
	var refused time.Time // since when the disk is refused; zero: it is not
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		x.op.Lock()
		if x.gone || x.running() { // another attempt has opened it, or it is detached
			x.op.Unlock()
			return
		}
		err := ctx.Err()
		if err == nil {
			claimed = claimed || d.claim(ctx, x)
			if err = d.start(ctx, x, false, false, false); err == nil {
				x.op.Unlock()
				d.logger.Info("disk is attached again", "volume", x.spec.label())
				return
			}
			x.set(Failed, err)
			d.logger.Error("disk cannot be opened, trying again", "volume", x.spec.label(), "error", err, "retry_in", wait)
			switch {
			case !isRefusal(err):
				refused = time.Time{}
			case refused.IsZero():
				refused = time.Now()
			case time.Since(refused) >= d.cfg.RefusedTimeout && x.view().Block:
				d.discard(ctx, x)
			}
		}
		x.op.Unlock()
		if !pause(ctx, wait) {
			return
		}
	}
}

// pause waits, and is false if ctx has ended meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// openLater resumes the attempts to open a disk that a refused detach has ended: users
// of its block device wait for it. The caller holds x.op.
func (d *Daemon) openLater(x *disk) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx == nil || d.stopped {
		return
	}
	x.resume()
	ctx := d.ctx
	d.retries.Go(func() { d.reopen(ctx, x) })
}

// watch reopens the disk after a failure, for as long as dev is the open device.
func (d *Daemon) watch(x *disk, dev *host.Disk) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx == nil || d.stopped {
		return
	}
	ctx, end := context.WithCancel(d.ctx)
	all, opened := d.ctx, time.Now()
	x.mu.Lock()
	release := x.leave
	x.leave = func() { end(); release() }
	x.mu.Unlock()
	d.retries.Go(func() {
		select {
		case <-dev.Failed():
		case <-ctx.Done():
			return
		}
		if time.Since(opened) < settled && !pause(ctx, lastRetry) {
			return
		}
		if d.stopFailed(ctx, x, dev) {
			d.reopen(all, x)
		}
	})
}

// settled is how long a disk must have been open to be opened again at once.
const settled = time.Minute

// stopFailed stops a disk that has failed, and reports whether it can be opened again:
// not if another owner has it, it was deleted, or its data is damaged.
func (d *Daemon) stopFailed(ctx context.Context, x *disk, dev *host.Disk) bool {
	x.op.Lock()
	defer x.op.Unlock()
	err := dev.Err()
	if ctx.Err() != nil || errs.Is(err, errs.Conflict) || errs.Is(err, errs.NotFound) || errs.Is(err, errs.Corrupt) {
		return false
	}
	d.logger.Error("disk has failed, it is opened again", "volume", x.spec.label(), "error", err)
	x.kept = dev.Last()
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.cfg.CloseTimeout)
	defer cancel()
	_ = x.stop(cctx) // the error is the failure
	x.set(Failed, err)
	x.resume()
	return true
}

// keep makes sure that a disk that had failed has lost nothing: its users go on with
// what was acknowledged. A sync that failed says nothing about what the log has on
// the disk, so all of it is sent to the store first. The caller holds x.op.
func (x *disk) keep(ctx context.Context, dev *host.Disk, acceptLoss bool) error {
	if x.kept == 0 || acceptLoss {
		x.kept = 0
		return nil
	}
	if dev.Recovery.Last < x.kept {
		return errs.New(errs.FailedPrecondition, "the log of volume %s has failed and lost acknowledged writes: it ends at sequence number %d, not %d",
			x.spec.label(), dev.Recovery.Last, x.kept).
			WithHint("`r lsvd detach --force %s`, then attach it again: the disk is as it was at that moment", x.spec.label())
	}
	if err := dev.Drain(ctx); err != nil {
		return err
	}
	x.kept = 0
	return nil
}

// isRefusal reports whether a disk cannot be opened for a reason that lies in
// the volume, its log or its owner, and not in a store that does not answer.
func isRefusal(err error) bool {
	return errs.Is(err, errs.Conflict) || errs.Is(err, errs.FailedPrecondition) || errs.Is(err, errs.Corrupt)
}

// claim has the holder keep the block device of the daemon before. It reports false
// if the caller must try again. The caller holds x.op.
func (d *Daemon) claim(ctx context.Context, x *disk) bool {
	if !x.view().Block {
		return true
	}
	err := loop.Claim(ctx, d.attachOptions(x))
	switch {
	case errs.Is(err, errs.NotFound):
	case err != nil:
		d.logger.Warn("a block device was not claimed, it is tried again", "volume", x.spec.label(), "error", err)
		return false
	default:
		d.logger.Info("users of a block device wait until its disk is open", "volume", x.spec.label(), "device", d.leftDevice(x))
	}
	return true
}

// discard removes the block device of a disk that is refused. The caller holds
// x.op.
func (d *Daemon) discard(ctx context.Context, x *disk) {
	device := d.leftDevice(x)
	if device == "" {
		return
	}
	if err := loop.Discard(ctx, d.attachOptions(x)); err != nil {
		d.logger.Warn("a block device was not taken away, it is tried again", "volume", x.spec.label(), "device", device, "error", err)
		return
	}
	d.logger.Error("the disk is refused: users of its block device get I/O errors", "volume", x.spec.label(), "device", device)
}

// detachUnopened takes away, if forced, the block device that waits for a disk
// that is not open; else it refuses. The caller holds x.op.
func (d *Daemon) detachUnopened(ctx context.Context, x *disk, force bool) error {
	if x.running() {
		return nil
	}
	device := d.leftDevice(x)
	switch {
	case device == "":
		return nil
	case !force:
		return errs.New(errs.FailedPrecondition, "volume %s is not open, and users of its block device %s wait for it", x.spec.label(), device).
			WithHint("`r lsvd info %s` says why; --force takes the device away, and its users get I/O errors", x.spec.label())
	}
	return loop.Discard(ctx, d.attachOptions(x))
}

// leftDevice is the block device that a daemon before has left of a disk that
// is not open; "" if there is none.
func (d *Daemon) leftDevice(x *disk) string {
	if !x.view().Block || x.running() {
		return ""
	}
	left, err := loop.List(d.cfg.State.ID())
	if err != nil {
		d.logger.Warn("cannot list block devices", "error", err)
		return ""
	}
	for _, e := range left {
		if e.Volume == x.id.String() && e.Device != "" {
			return e.Device
		}
	}
	return ""
}
