package buildkit

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// layoutStore serves the blobs of an OCI image layout to buildkitd. It is
// read-only: containerd's own store for directories would write into it.
type layoutStore struct{ dir string }

var errReadOnly = errors.New("an image layout is read-only")

func (s layoutStore) open(d digest.Digest) (*os.File, error) {
	if err := d.Validate(); err != nil {
		return nil, errors.Join(errdefs.ErrInvalidArgument, err)
	}
	f, err := os.Open(filepath.Join(s.dir, "blobs", d.Algorithm().String(), d.Encoded()))
	if errors.Is(err, os.ErrNotExist) {
		return nil, errors.Join(errdefs.ErrNotFound, err)
	}
	return f, err
}

func (s layoutStore) Info(_ context.Context, d digest.Digest) (content.Info, error) {
	f, err := s.open(d)
	if err != nil {
		return content.Info{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return content.Info{}, err
	}
	return content.Info{Digest: d, Size: st.Size(), CreatedAt: st.ModTime(), UpdatedAt: st.ModTime()}, nil
}

func (s layoutStore) ReaderAt(_ context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	f, err := s.open(desc.Digest)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	return sizedFile{f, st.Size()}, nil
}

type sizedFile struct {
	*os.File
	size int64
}

func (f sizedFile) Size() int64 { return f.size }

func (layoutStore) Update(context.Context, content.Info, ...string) (content.Info, error) {
	return content.Info{}, errReadOnly
}
func (layoutStore) Walk(context.Context, content.WalkFunc, ...string) error { return errReadOnly }
func (layoutStore) Delete(context.Context, digest.Digest) error             { return errReadOnly }
func (layoutStore) Status(context.Context, string) (content.Status, error) {
	return content.Status{}, errReadOnly
}
func (layoutStore) ListStatuses(context.Context, ...string) ([]content.Status, error) {
	return nil, errReadOnly
}
func (layoutStore) Abort(context.Context, string) error { return errReadOnly }
func (layoutStore) Writer(context.Context, ...content.WriterOpt) (content.Writer, error) {
	return nil, errReadOnly
}

var (
	_ content.Store = layoutStore{}
	_ io.ReaderAt   = sizedFile{}
)
