package main

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
	digest "github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"miren.dev/runtime/components/baseimage"
	"miren.dev/runtime/components/containerd"
)

// baseImage is the layout of an image.
func baseImage(ctx context.Context, b *bench, name string) (*baseimage.Image, error) {
	ref, err := baseimage.Lookup(name)
	if err != nil {
		return nil, err
	}
	return baseimage.New(baseimage.Config{BinDir: b.opt.bin}).Ensure(ctx, ref, nil)
}

// importImage imports it into an image store.
func importImage(ctx context.Context, b *bench, images *containerd.Images, name string) (string, error) {
	img, err := baseImage(ctx, b, name)
	if err != nil {
		return "", err
	}
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		err := t.AddFS(os.DirFS(img.Dir))
		w.CloseWithError(errors.Join(err, t.Close()))
	}()
	defer r.Close()
	return images.Import(ctx, r, "bench/"+img.Name, nil)
}

// unpackImage writes its files to dir.
func unpackImage(ctx context.Context, b *bench, name, dir string) error {
	img, err := baseImage(ctx, b, name)
	if err != nil {
		return err
	}
	blob := func(d digest.Digest) string {
		return filepath.Join(img.Dir, "blobs", string(d.Algorithm()), d.Encoded())
	}
	text, err := os.ReadFile(blob(digest.Digest(img.Digest)))
	if err != nil {
		return err
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return err
	}
	for _, l := range m.Layers {
		if err := unpackLayer(ctx, blob(l.Digest), dir); err != nil {
			return fmt.Errorf("layer %s: %w", l.Digest, err)
		}
	}
	return nil
}

// unpackLayer unpacks a layer compressed with zstd, as all of our layers are.
func unpackLayer(ctx context.Context, path, dir string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		return err
	}
	defer z.Close()
	cmd := exec.CommandContext(ctx, "tar", "-x", "-p", "--numeric-owner", "-C", dir)
	cmd.Stdin = z
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
