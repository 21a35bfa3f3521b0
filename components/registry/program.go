package registry

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"os"
	"runtime"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"miren.dev/runtime/pkg/errs"
)

// blobs is the content of an image, in memory.
type blobs map[digest.Digest][]byte

var _ content.Provider = blobs{}

// reader is a content.ReaderAt.
type reader struct{ *bytes.Reader }

func (reader) Close() error { return nil }

// ReaderAt returns the content of a descriptor.
func (b blobs) ReaderAt(_ context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	blob, ok := b[desc.Digest]
	if !ok {
		return nil, errdefs.ErrNotFound
	}
	return reader{bytes.NewReader(blob)}, nil
}

func (b blobs) add(mediaType string, blob []byte) ocispec.Descriptor {
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(blob), Size: int64(len(blob))}
	b[desc.Digest] = blob
	return desc
}

// ProgramImage makes an image, for this machine's platform, that has nothing but a
// program of this machine, as /name. The same program makes the same image.
func ProgramImage(path, name string) (content.Provider, ocispec.Descriptor, error) {
	store, desc, err := programImage(path, name)
	if err != nil {
		return nil, desc, errs.New(errs.FailedPrecondition, "make an image of %s: %w", path, err)
	}
	return store, desc, nil
}

func programImage(path, name string) (store blobs, _ ocispec.Descriptor, _ error) {
	store, none := blobs{}, ocispec.Descriptor{}
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, none, err
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(program))}); err != nil {
		return nil, none, err
	}
	if _, err := w.Write(program); err != nil {
		return nil, none, err
	}
	if err := w.Close(); err != nil {
		return nil, none, err
	}
	plain := digest.FromBytes(layer.Bytes())
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(layer.Bytes()); err != nil {
		return nil, none, err
	}
	if err := z.Close(); err != nil {
		return nil, none, err
	}
	image, err := json.Marshal(ocispec.Image{
		Platform: ocispec.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH},
		Config:   ocispec.ImageConfig{Entrypoint: []string{"/" + name}},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{plain}},
	})
	if err != nil {
		return nil, none, err
	}
	manifest, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: store.add(ocispec.MediaTypeImageConfig, image),
		Layers: []ocispec.Descriptor{store.add(ocispec.MediaTypeImageLayerGzip, packed.Bytes())},
	})
	if err != nil {
		return nil, none, err
	}
	return store, store.add(ocispec.MediaTypeImageManifest, manifest), nil
}
