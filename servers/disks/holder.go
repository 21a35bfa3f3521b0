package disks

import (
	"context"
	"os"
	"sync"

	"miren.dev/runtime/lsvd/frontend/holder"
)

// lazyHolder starts the holder when it is first needed. If all disks are served
// by NBD only, no holder runs.
type lazyHolder struct {
	spec holder.Spec

	mu     sync.Mutex
	client *holder.Client
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
	return c, nil
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
