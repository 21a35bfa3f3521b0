package loop

import (
	"context"

	"miren.dev/runtime/pkg/errs"
)

// Claim has the holder keep the device that a predecessor has left, for as long
// as this process is connected to the holder. So users of the device wait
// while the disk is opened, however long that takes. It serves nothing: that
// begins with Attach, once the disk is open.
// NotFound: no predecessor has left one. Conflict: the predecessor lives.
func Claim(ctx context.Context, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if o.Holder == nil {
		return errs.New(errs.NotFound, "claim %s: there is no holder", o.Volume)
	}
	_, files, err := o.take(ctx)
	if err != nil {
		return errs.Wrap(err, "claim %s", o.Volume)
	}
	for _, f := range files { // Attach takes them again
		f.Close()
	}
	return nil
}

// Discard takes away what predecessors have left of a disk that is not
// attached. Users of the device get I/O errors.
func Discard(ctx context.Context, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if err := o.drop(ctx); err != nil {
		return errs.Wrap(err, "discard %s", o.Volume)
	}
	_, err = sweep(ctx, o.own)
	return errs.Wrap(err, "discard %s", o.Volume)
}

// own reports whether an entry is of the disk.
func (o Options) own(e Entry) bool { return e.Owner == o.Owner && e.Volume == o.Volume }

// drop has the holder give up the connection of the disk, if it has one.
func (o Options) drop(ctx context.Context) error {
	if o.Holder == nil {
		return nil
	}
	err := o.Holder.Drop(ctx, o.holdName())
	if errs.Is(err, errs.Unavailable) {
		// Should it live after all: what it holds is of no use once the mount is gone.
		o.Logger.Warn("the holder does not know of a detach", "volume", o.Volume, "error", err)
		return nil
	}
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	return err
}
