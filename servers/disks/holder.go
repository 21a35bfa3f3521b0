package disks

import (
	"context"
	"os"
	"sync"

	"miren.dev/runtime/lsvd/holder"
)

// lazyHolder is a holder that is started when it is needed first: for disks
// that are served by NBD only, none is.
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
		case <-h.client.Done(): // it has gone
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

// Put implements attach.Holder.
func (h *lazyHolder) Put(ctx context.Context, name string, meta []byte, files ...*os.File) error {
	c, err := h.get(ctx)
	if err != nil {
		return err
	}
	return c.Put(ctx, name, meta, files...)
}

// Take implements attach.Holder.
func (h *lazyHolder) Take(ctx context.Context, name string) ([]byte, []*os.File, error) {
	c, err := h.get(ctx)
	if err != nil {
		return nil, nil, err
	}
	return c.Take(ctx, name)
}

// Drop implements attach.Holder.
func (h *lazyHolder) Drop(ctx context.Context, name string) error {
	c, err := h.get(ctx)
	if err != nil {
		return err
	}
	return c.Drop(ctx, name)
}

// end ends the holder if it holds nothing, and else leaves it to the next daemon.
func (h *lazyHolder) end(ctx context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.client != nil {
		_ = h.client.Stop(ctx) // it refuses while it holds something
		h.client.Close()
		h.client = nil
	}
}
