package source

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"

	"miren.dev/runtime/pkg/errs"
)

const (
	packMagic    = "rtpack1\n"
	frameContent = 1
	frameEnd     = 0
	// packWindow bounds the memory that reading a pack takes, in bytes.
	packWindow = 4 << 20
)

// WritePack writes the contents to a pack. It calls progress, if not nil, with
// the number of bytes written since the last call.
func (t *Tree) WritePack(ctx context.Context, w io.Writer, digests []Digest, progress func(n int64)) error {
	return writePack(ctx, w, digests, func(z io.Writer, d Digest) error { return t.packOne(z, d, progress) })
}

// writePack writes a pack whose contents one writes.
func writePack(ctx context.Context, w io.Writer, digests []Digest, one func(io.Writer, Digest) error) error {
	if _, err := io.WriteString(w, packMagic); err != nil {
		return sendError(err)
	}
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1<<20), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return errs.New(errs.Internal, "compress source: %w", err)
	}
	defer z.Close()
	for _, d := range digests {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := one(z, d); err != nil {
			return err
		}
	}
	var end [9]byte
	end[0] = frameEnd
	binary.BigEndian.PutUint64(end[1:], uint64(len(digests)))
	if _, err := z.Write(end[:]); err != nil {
		return sendError(err)
	}
	if err := z.Close(); err != nil {
		return sendError(err)
	}
	return nil
}

func sendError(err error) error { return errs.New(errs.Unavailable, "send source: %w", err) }

// frameHead returns what precedes a content in a pack.
func frameHead(d Digest, size int64) (head [41]byte, err error) {
	head[0] = frameContent
	if n, err := hex.Decode(head[1:33], []byte(d)); err != nil || n != 32 {
		return head, errs.New(errs.InvalidArgument, "digest %q", d)
	}
	binary.BigEndian.PutUint64(head[33:], uint64(size))
	return head, nil
}

func (t *Tree) packOne(w io.Writer, d Digest, progress func(int64)) error {
	f, err := t.Open(d)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return sendError(err)
	}
	head, err := frameHead(d, info.Size())
	if err != nil {
		return err
	}
	if _, err := w.Write(head[:]); err != nil {
		return sendError(err)
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, h), io.LimitReader(f, info.Size()))
	if err != nil {
		return sendError(err)
	}
	if n != info.Size() || !bytes.Equal(h.Sum(nil), head[1:33]) {
		return errs.New(errs.Conflict, "%s changed while it was sent", t.paths[d]).WithHint("try again")
	}
	if progress != nil {
		progress(n)
	}
	return nil
}

// ReadPack calls put for each content of a pack, in order, with a reader of exactly size bytes that put must read to
// its end. It refuses digests that size rejects, and contents of another size.
func ReadPack(r io.Reader, size func(Digest) (int64, bool), put func(Digest, int64, io.Reader) error) error {
	bad := func(format string, args ...any) error {
		return errs.New(errs.InvalidArgument, "source pack: "+format, args...)
	}
	magic := make([]byte, len(packMagic))
	if _, err := io.ReadFull(r, magic); err != nil {
		return readError(err)
	}
	if string(magic) != packMagic {
		return bad("it does not begin like one")
	}
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(packWindow), zstd.WithDecoderLowmem(true))
	if err != nil {
		return readError(err)
	}
	defer z.Close()
	in := bufio.NewReader(z)
	for count := uint64(0); ; count++ {
		tag, err := in.ReadByte()
		if err != nil {
			return readError(err)
		}
		switch tag {
		case frameEnd:
			var n [8]byte
			if _, err := io.ReadFull(in, n[:]); err != nil {
				return readError(err)
			}
			if got := binary.BigEndian.Uint64(n[:]); got != count {
				return bad("it has %d contents and says %d", count, got)
			}
			return nil
		case frameContent:
		default:
			return bad("unknown frame %d", tag)
		}
		var head [40]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return readError(err)
		}
		d, n := Digest(hex.EncodeToString(head[:32])), binary.BigEndian.Uint64(head[32:])
		want, ok := size(d)
		if !ok {
			return bad("content %s was not asked for", d)
		}
		if n != uint64(want) {
			return bad("content %s has %d bytes, not %d", d, n, want)
		}
		body := io.LimitReader(in, want)
		if err := put(d, want, body); err != nil {
			return err
		}
		if rest, err := io.Copy(io.Discard, body); err != nil || rest > 0 {
			return errs.New(errs.Internal, "source pack: content %s was not read to its end", d)
		}
	}
}

// readError distinguishes a damaged pack from one that did not arrive.
func readError(err error) error {
	var e *errs.Error
	switch {
	case errors.As(err, &e):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errs.New(errs.InvalidArgument, "source pack: it ends too early")
	case errors.Is(err, zstd.ErrMagicMismatch), errors.Is(err, zstd.ErrCRCMismatch), errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return errs.New(errs.InvalidArgument, "source pack: %w", err)
	}
	return errs.New(errs.Unavailable, "receive source: %w", err)
}
