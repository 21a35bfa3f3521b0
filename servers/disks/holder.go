package disks

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"time"

	"miren.dev/runtime/lsvd/frontend/holder"
)

// lazyHolder starts the holder when it is first needed. If all disks are served
// by NBD only, no holder runs.
type lazyHolder struct {
	spec holder.Spec

	lost chan struct{} // has a value when a holder has ended since watch last read it

	mu     sync.Mutex
	client *holder.Client
}

func newHolder(spec holder.Spec) *lazyHolder {
	return &lazyHolder{spec: spec, lost: make(chan struct{}, 1)}
}

func (h *lazyHolder) get(ctx context.Context) (*holder.Client, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.client != nil {
		select {
		case <-h.client.Done(): // the holder has exited
			h.client.Close()
			h.client = nil
		default:
			return h.client, nil
		}
	}
	c, err := holder.Start(ctx, h.spec)
	if err != nil {
		return nil, err
	}
	h.client = c
	go func() {
		<-c.Done()
		select {
		case h.lost <- struct{}{}:
		default: // watch has not read the value before yet
		}
	}()
	return c, nil
}

// holdPause is the time between two attempts to give block devices to a new holder.
const holdPause = time.Second

// watch has hold give the block devices to a new holder when the holder has ended. Otherwise they would fail with the
// daemon, since the new holder does not know them. watch returns when ctx ends.
func (h *lazyHolder) watch(ctx context.Context, logger *slog.Logger, hold func(context.Context) error) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.lost:
		}
		logger.Warn("the holder of block devices has ended; they are given to a new one")
		for err := hold(ctx); err != nil && ctx.Err() == nil; err = hold(ctx) {
			logger.Error("block devices have no holder", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(holdPause):
			}
		}
	}
}

// Put implements [loop.Holder].
func (h *lazyHolder) Put(ctx context.Context, name string, meta []byte, files ...*os.File) error {
	c, err := h.get(ctx)
	if err != nil {
		return err
	}
	return c.Put(ctx, name, meta, files...)
}

// Take implements [loop.Holder].
func (h *lazyHolder) Take(ctx context.Context, name string) ([]byte, []*os.File, error) {
	c, err := h.get(ctx)
	if err != nil {
		return nil, nil, err
	}
	return c.Take(ctx, name)
}

// Drop implements [loop.Holder].
func (h *lazyHolder) Drop(ctx context.Context, name string) error {
	c, err := h.get(ctx)
	if err != nil {
		return err
	}
	return c.Drop(ctx, name)
}

// end stops the holder if it holds no device; otherwise the next daemon takes
// it over.
func (h *lazyHolder) end(ctx context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.client != nil {
		_ = h.client.Stop(ctx) // the holder refuses to stop while it holds a device
		h.client.Close()
		h.client = nil
	}
}
