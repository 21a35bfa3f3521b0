package docker

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// writeArchive writes an image as an archive that every engine loads: with uncompressed layers, since older engines do
// not read all compressions.
func writeArchive(ctx context.Context, out io.Writer, store content.Store, m ocispec.Manifest) error {
	w := tar.NewWriter(out)
	config, err := content.ReadBlob(ctx, store, m.Config)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	index := struct {
		Config   string
		RepoTags []string
		Layers   []string
	}{Config: m.Config.Digest.Encoded() + ".json"}
	if err := writeEntry(w, index.Config, int64(len(config)), func(w io.Writer) error {
		_, err := w.Write(config)
		return err
	}); err != nil {
		return err
	}
	for i, layer := range m.Layers {
		name := fmt.Sprintf("%d-%s.tar", i, layer.Digest.Encoded())
		// An archive has the size before the content.
		size, err := copyLayer(ctx, io.Discard, store, layer)
		if err != nil {
			return err
		}
		if err := writeEntry(w, name, size, func(w io.Writer) error {
			_, err := copyLayer(ctx, w, store, layer)
			return err
		}); err != nil {
			return err
		}
		index.Layers = append(index.Layers, name)
	}
	b, err := json.Marshal([]any{index})
	if err != nil {
		return err
	}
	if err := writeEntry(w, "manifest.json", int64(len(b)), func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}); err != nil {
		return err
	}
	return w.Close()
}

func writeEntry(w *tar.Writer, name string, size int64, write func(io.Writer) error) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o444, Size: size}); err != nil {
		return err
	}
	return write(w)
}

// copyLayer writes the uncompressed layer and returns its size.
func copyLayer(ctx context.Context, w io.Writer, store content.Store, layer ocispec.Descriptor) (int64, error) {
	r, err := store.ReaderAt(ctx, layer)
	if err != nil {
		return 0, fmt.Errorf("read layer %s: %w", layer.Digest, err)
	}
	defer r.Close()
	u, err := compression.DecompressStream(content.NewReader(r))
	if err != nil {
		return 0, fmt.Errorf("read layer %s: %w", layer.Digest, err)
	}
	defer u.Close()
	n, err := io.Copy(w, u)
	if err != nil {
		return n, fmt.Errorf("copy layer %s: %w", layer.Digest, err)
	}
	return n, nil
}
