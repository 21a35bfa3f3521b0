package containerd

import (
	"context"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
)

// Layers gives read each layer of an image, the lowest first, as a tar stream without compression. ref is the exact
// name, name@digest, of the image.
func (s *Images) Layers(ctx context.Context, ref string, read func(io.Reader) error) error {
	store, desc, err := s.Manifest(ctx, ref)
	if err != nil {
		return err
	}
	m, err := images.Manifest(ctx, store, desc, nil)
	if err != nil {
		return Error(err, "manifest of image %s", ref)
	}
	for _, l := range m.Layers {
		err := func() error {
			ra, err := store.ReaderAt(ctx, l)
			if err != nil {
				return Error(err, "layer %s of image %s", l.Digest, ref)
			}
			defer ra.Close()
			r, err := compression.DecompressStream(content.NewReader(ra))
			if err != nil {
				return Error(err, "layer %s of image %s", l.Digest, ref)
			}
			defer r.Close()
			return read(r)
		}()
		if err != nil {
			return err
		}
	}
	return nil
}
