package lsvd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/inspect"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/pkg/errs"
)

// A copy transfers pieces of pieceBytes, at most this many concurrently.
const (
	pieceBytes = 1 << 20
	pieces     = 8
)

var zeros [lsvd.BlockSize]byte

// copyIn writes a raw image to an empty disk, without the holes and zeros of
// the image. It calls told with the number of bytes copied so far.
func copyIn(ctx context.Context, d *host.Disk, f *os.File, size int64, told func(done int64)) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(pieces)
	var done atomic.Int64
	for off := int64(0); off < size && gctx.Err() == nil; {
		data, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
		switch {
		case errors.Is(err, unix.ENXIO): // the rest is a hole
			data = size
		case err != nil:
			data = off // the file system does not report holes: read
		}
		data = min(data/lsvd.BlockSize*lsvd.BlockSize, size)
		if data > off {
			told(done.Add(data - off))
			off = data
			continue
		}
		n := min(pieceBytes-off%pieceBytes, size-off)
		at := off
		g.Go(func() error {
			b := make([]byte, n)
			if k, err := f.ReadAt(b, at); err != nil && !(errors.Is(err, io.EOF) && k > 0) {
				return errs.New(errs.Unavailable, "read the image at %d: %w", at, err)
			}
			if err := writeData(gctx, d, b, at); err != nil {
				return err
			}
			told(done.Add(n))
			return nil
		})
		off += n
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// copyStream writes the data of a reader to the disk, without its zeros.
func copyStream(ctx context.Context, d *host.Disk, r io.Reader, told func(done int64)) error {
	b := make([]byte, pieceBytes)
	for off := int64(0); ; {
		n, err := io.ReadFull(r, b)
		if n > 0 {
			if off+int64(n) > d.Size() {
				return errs.New(errs.InvalidArgument, "the image is larger than the %d bytes of the volume", d.Size()).WithHint("give a larger --size")
			}
			if werr := writeData(ctx, d, b[:n], off); werr != nil {
				return werr
			}
			off += int64(n)
			told(off)
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return errs.New(errs.Unavailable, "read the image: %w", err)
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

// writeData writes the blocks of b that are not zero.
func writeData(ctx context.Context, d *host.Disk, b []byte, off int64) error {
	start := -1
	for at := 0; at <= len(b); at += lsvd.BlockSize {
		end := min(at+lsvd.BlockSize, len(b))
		zero := at >= len(b) || bytes.Equal(b[at:end], zeros[:end-at])
		switch {
		case !zero && start < 0:
			start = at
		case zero && start >= 0:
			if err := d.WriteAt(ctx, b[start:min(at, len(b))], off+int64(start), 0); err != nil {
				return err
			}
			start = -1
		}
	}
	if start >= 0 { // the last piece is not a whole block
		return d.WriteAt(ctx, b[start:], off+int64(start), 0)
	}
	return nil
}

// extents returns the parts of the disk that have data, and how many bytes.
func extents(d *host.Disk) (parts []inspect.Range, total int64, err error) {
	err = d.Status(0, d.Size(), func(off, n int64, hole bool) bool {
		if !hole {
			parts = append(parts, inspect.Range{Off: off, Len: n})
			total += n
		}
		return true
	})
	return parts, total, err
}

// copyOut writes the disk's data to f, which reads as zeros elsewhere.
func copyOut(ctx context.Context, d *host.Disk, f *os.File, parts []inspect.Range, told func(done int64)) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(pieces)
	var done atomic.Int64
	for _, p := range parts {
		for off := p.Off; off < p.Off+p.Len && gctx.Err() == nil; {
			n := min(pieceBytes-off%pieceBytes, p.Off+p.Len-off)
			at := off
			g.Go(func() error {
				b := make([]byte, n)
				if err := d.ReadAt(gctx, b, at); err != nil {
					return err
				}
				if _, err := f.WriteAt(b, at); err != nil {
					return errs.New(errs.Unavailable, "write the image at %d: %w", at, err)
				}
				told(done.Add(n))
				return nil
			})
			off += n
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// streamOut writes the whole disk to w, in order.
func streamOut(ctx context.Context, d *host.Disk, w io.Writer, told func(done int64)) error {
	b := make([]byte, pieceBytes)
	for off := int64(0); off < d.Size(); {
		n := min(pieceBytes, d.Size()-off)
		if err := d.ReadAt(ctx, b[:n], off); err != nil {
			return err
		}
		if _, err := w.Write(b[:n]); err != nil {
			return errs.New(errs.Unavailable, "write the image: %w", err)
		}
		off += n
		told(off)
	}
	return nil
}
