package source

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"slices"

	"miren.dev/runtime/pkg/errs"
)

// Content is a file of a source in memory.
type Content struct {
	Path       string // slash-separated, below the root
	Data       []byte
	Executable bool
}

// Memory is a source whose contents are in memory.
type Memory struct {
	Manifest *Manifest
	data     map[Digest][]byte
}

// NewMemory returns the source of files. InvalidArgument if two have the same
// path, or one has a path that is not below the root.
func NewMemory(files []Content) (*Memory, error) {
	m := &Memory{Manifest: new(Manifest), data: map[Digest][]byte{}}
	for _, f := range files {
		entry := File{Path: f.Path, Mode: Regular, Size: int64(len(f.Data)), Digest: digestOf(f.Data)}
		if f.Executable {
			entry.Mode = Executable
		}
		m.data[entry.Digest] = f.Data
		m.Manifest.Files = append(m.Manifest.Files, entry)
	}
	slices.SortFunc(m.Manifest.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	for i, f := range m.Manifest.Files {
		if i > 0 && f.Path == m.Manifest.Files[i-1].Path {
			return nil, errs.New(errs.InvalidArgument, "%s is there twice", f.Path)
		}
	}
	return m, m.Manifest.Validate(Limits{})
}

// WritePack writes the contents to a pack.
func (m *Memory) WritePack(ctx context.Context, w io.Writer, digests []Digest) error {
	return writePack(ctx, w, digests, func(z io.Writer, d Digest) error {
		data, ok := m.data[d]
		if !ok {
			return errs.New(errs.NotFound, "content %s is not in the source", d)
		}
		head, err := frameHead(d, int64(len(data)))
		if err != nil {
			return err
		}
		if _, err := z.Write(head[:]); err != nil {
			return sendError(err)
		}
		if _, err := z.Write(data); err != nil {
			return sendError(err)
		}
		return nil
	})
}

// Keep stores a source that the server itself made, and returns its digest.
func (s *Store) Keep(ctx context.Context, m *Memory) (Digest, error) {
	encoded, err := m.Manifest.Encode()
	if err != nil {
		return "", err
	}
	d, missing, err := s.Missing(encoded)
	if err != nil || len(missing) == 0 {
		return d, err
	}
	var pack bytes.Buffer
	if err := m.WritePack(ctx, &pack, missing); err != nil {
		return "", err
	}
	_, err = s.ReadPack(ctx, d, &pack)
	return d, err
}
