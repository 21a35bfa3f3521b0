package runsc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
)

// Copies of snapshots in object stores:
//
//	chunk-<SHA-256 of the content>   copyChunk bytes of a file, or its end; zstd
//	manifest                         copyManifest, written when all chunks are there
//
// Without a manifest there is no copy. A chunk that an interrupted attempt left is named by its content, so the
// next attempt need not send it. Whoever fetches a copy knows the manifest's sum from elsewhere: a store cannot
// replace a snapshot by another.

const (
	copyChunk    = 8 << 20
	copyParallel = 4 // chunks of up to 3 times copyChunk of memory
	manifestKey  = "manifest"
	chunkPrefix  = "chunk-"
	maxCopyFile  = 1 << 42
)

// copyManifest describes a copy.
type copyManifest struct {
	Record snapshotRecord
	Files  []copiedFile
	Agent  copiedFile
}

// copiedFile is a file of a snapshot. Chunks are the sums of its parts; that of one with zeros only is empty.
type copiedFile struct {
	Name   string
	Size   int64
	Chunks []string
}

// The coders are safe for concurrent use by EncodeAll and DecodeAll.
var (
	chunkEncoder, _ = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(copyParallel))
	chunkDecoder, _ = zstd.NewReader(nil, zstd.WithDecoderMaxMemory(copyChunk), zstd.WithDecoderConcurrency(copyParallel))
)

func sumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// CopySnapshot implements execution.SnapshotCopier.
func (d *Driver) CopySnapshot(ctx context.Context, snapshot string, o execution.Objects) (execution.SnapshotCopy, error) {
	if err := agentdriver.CheckID(snapshot); err != nil {
		return execution.SnapshotCopy{}, err
	}
	unlock, err := d.locks.Lock(ctx, snapshotLock(snapshot))
	if err != nil {
		return execution.SnapshotCopy{}, err
	}
	defer unlock()
	r, err := d.snapshotRecord(snapshot)
	if err != nil {
		return execution.SnapshotCopy{}, err
	}
	c, err := d.copyTo(ctx, r, o)
	return c, errs.Wrap(err, "copy snapshot %s", snapshot)
}

func (d *Driver) copyTo(ctx context.Context, r *snapshotRecord, o execution.Objects) (execution.SnapshotCopy, error) {
	sender, err := newSender(ctx, o)
	if err != nil {
		return execution.SnapshotCopy{}, err
	}
	m := copyManifest{Record: *r}
	m.Record.Spec.Egress = nil // a restored sandbox is given its policy
	entries, err := os.ReadDir(d.snapshotDir(r.ID))
	if err != nil {
		return execution.SnapshotCopy{}, errs.New(errs.Unavailable, "files of the snapshot: %w", err)
	}
	for _, e := range entries {
		if e.Name() == infoFile {
			continue
		}
		f, err := sender.file(ctx, d.snapshotDir(r.ID, e.Name()))
		if err != nil {
			return execution.SnapshotCopy{}, err
		}
		m.Files = append(m.Files, f)
	}
	if m.Agent, err = sender.file(ctx, d.hub.BinaryPath(r.Agent)); err != nil {
		return execution.SnapshotCopy{}, err
	}
	b, err := json.Marshal(m)
	if err != nil {
		return execution.SnapshotCopy{}, errs.New(errs.Internal, "describe the copy: %w", err)
	}
	fault.Point("snapshot", "copy-manifest", fault.Before)
	err = o.Create(ctx, manifestKey, b)
	fault.Point("snapshot", "copy-manifest", fault.After)
	if errs.Is(err, errs.AlreadyExists) {
		var old []byte
		if old, err = o.Get(ctx, manifestKey); err == nil && !bytes.Equal(old, b) {
			err = errs.New(errs.Corrupt, "the store has another copy")
		}
	}
	if err != nil {
		return execution.SnapshotCopy{}, err
	}
	c := execution.SnapshotCopy{Sum: sumOf(b), Bytes: int64(len(b))}
	for _, f := range append(m.Files, m.Agent) {
		for _, sum := range f.Chunks {
			c.Bytes += sender.there[sum] // 0 for zeros
			delete(sender.there, sum)
		}
	}
	return c, nil
}

// sender sends the chunks of files that a store does not have.
type sender struct {
	o     execution.Objects
	there map[string]int64 // size in the store of the chunk with a sum
}

func newSender(ctx context.Context, o execution.Objects) (*sender, error) {
	s := &sender{o: o, there: map[string]int64{}}
	for i, err := range o.List(ctx) {
		if err != nil {
			return nil, err
		}
		if sum, ok := strings.CutPrefix(i.Key, chunkPrefix); ok {
			s.there[sum] = i.Size
		}
	}
	return s, nil
}

// file sends a file.
func (s *sender) file(ctx context.Context, path string) (copiedFile, error) {
	file, err := os.Open(path)
	if err != nil {
		return copiedFile{}, errs.New(errs.Unavailable, "file of the snapshot: %w", err)
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return copiedFile{}, errs.New(errs.Unavailable, "file of the snapshot: %w", err)
	}
	f := copiedFile{Name: filepath.Base(path), Size: st.Size(), Chunks: make([]string, chunks(st.Size()))}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(copyParallel)
	type sent struct {
		sum  string
		size int64
	}
	out := make([]sent, len(f.Chunks))
	for n := range f.Chunks {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			b := make([]byte, min(copyChunk, f.Size-int64(n)*copyChunk))
			if _, err := file.ReadAt(b, int64(n)*copyChunk); err != nil {
				return errs.New(errs.Unavailable, "file of the snapshot: %w", err)
			}
			if zero(b) {
				return nil
			}
			sum := sumOf(b)
			out[n] = sent{sum, s.there[sum]}
			if out[n].size > 0 {
				return nil
			}
			packed := chunkEncoder.EncodeAll(b, nil)
			out[n].size = int64(len(packed))
			fault.Point("snapshot", "copy-chunk", fault.Before)
			err := s.o.Create(ctx, chunkPrefix+sum, packed)
			fault.Point("snapshot", "copy-chunk", fault.After)
			if errs.Is(err, errs.AlreadyExists) { // two chunks are the same
				err = nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return copiedFile{}, err
	}
	for n, c := range out {
		f.Chunks[n] = c.sum
		if c.sum != "" {
			s.there[c.sum] = c.size
		}
	}
	return f, nil
}

func chunks(size int64) int64 { return (size + copyChunk - 1) / copyChunk }

func zero(b []byte) bool {
	for len(b) >= len(zeros) {
		if !bytes.Equal(b[:len(zeros)], zeros[:]) {
			return false
		}
		b = b[len(zeros):]
	}
	return bytes.Equal(b, zeros[:len(b)])
}

var zeros [4096]byte

// FetchSnapshot implements execution.SnapshotCopier.
func (d *Driver) FetchSnapshot(ctx context.Context, snapshot, sum string, o execution.Objects) error {
	if err := agentdriver.CheckID(snapshot); err != nil {
		return err
	}
	unlock, err := d.locks.Lock(ctx, snapshotLock(snapshot))
	if err != nil {
		return err
	}
	defer unlock()
	exists, err := d.hasSnapshot(snapshot)
	if err != nil {
		return err
	}
	fetch := d.fetch
	if exists {
		r, err := d.snapshotRecord(snapshot)
		if err != nil || d.hub.CheckBinary(r.Agent) == nil {
			return err
		}
		fetch = d.fetchAgent // an interrupted attempt got all but the agent
	}
	m, err := fetchManifest(ctx, snapshot, sum, o)
	if err != nil {
		return err
	}
	if err := d.checkMachine(&m.Record); err != nil {
		return err
	}
	return errs.Wrap(fetch(ctx, m, o), "fetch snapshot %s", snapshot)
}

// fetchManifest returns the manifest of a copy, whose paths and sizes are sound.
func fetchManifest(ctx context.Context, snapshot, sum string, o execution.Objects) (*copyManifest, error) {
	b, err := o.Get(ctx, manifestKey)
	if errs.Is(err, errs.NotFound) {
		return nil, errs.New(errs.NotFound, "the store has no copy of snapshot %s", snapshot)
	}
	if err != nil {
		return nil, err
	}
	var m copyManifest
	if sumOf(b) != sum || json.Unmarshal(b, &m) != nil || m.Record.ID != snapshot {
		return nil, errs.New(errs.Corrupt, "the store has another copy of snapshot %s than the one that was made", snapshot)
	}
	for _, f := range append(m.Files, m.Agent) {
		if f.Name == infoFile || f.Name != filepath.Base(f.Name) || strings.HasPrefix(f.Name, ".") || f.Size < 0 || f.Size > maxCopyFile ||
			int64(len(f.Chunks)) != chunks(f.Size) {
			return nil, errs.New(errs.Corrupt, "the copy of snapshot %s has a file %q of %d bytes in %d parts", snapshot, f.Name, f.Size, len(f.Chunks))
		}
	}
	return &m, nil
}

// fetch makes and publishes a snapshot. After an error it removes the files and the image reference of the snapshot.
func (d *Driver) fetch(ctx context.Context, m *copyManifest, o execution.Objects) (err error) {
	r := &m.Record
	dir := d.snapshotDir(newSnapshot + r.ID)
	defer func() {
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
			defer cancel()
			err = errors.Join(d.explainSave(err), os.RemoveAll(dir), d.removeSnapshot(ctx, r.ID))
		}
	}()
	// Without its image no sandbox could be made of it.
	if _, err := d.cfg.Images.Keep(ctx, r.Spec.Image, imagePrefix+r.ID); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return errs.New(errs.Unavailable, "directory of the snapshot: %w", err)
	}
	fault.Point("snapshot", "fetch", fault.Before)
	for _, f := range m.Files {
		if err := receive(ctx, filepath.Join(dir, f.Name), f, o); err != nil {
			return err
		}
	}
	fault.Point("snapshot", "fetch", fault.After)
	if err := d.publish(r, dir); err != nil {
		return err
	}
	return d.fetchAgent(ctx, m, o)
}

// fetchAgent gets the agent of a published snapshot, unless the node has it. The snapshot keeps the agent from being
// swept; before it is published, the end of any sandbox might sweep it.
func (d *Driver) fetchAgent(ctx context.Context, m *copyManifest, o execution.Objects) (err error) {
	r := &m.Record
	if d.hub.CheckBinary(r.Agent) == nil {
		return nil
	}
	dir := d.snapshotDir(newSnapshot + r.ID)
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return errs.New(errs.Unavailable, "directory of the agent: %w", err)
	}
	agent := filepath.Join(dir, "agent")
	if err := receive(ctx, agent, m.Agent, o); err != nil {
		return err
	}
	return d.hub.AddBinary(r.Agent, agent)
}

// receive writes a file of a copy, and leaves holes where it has zeros.
func receive(ctx context.Context, path string, f copiedFile, o execution.Objects) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return errs.New(errs.Unavailable, "file of the snapshot: %w", err)
	}
	defer file.Close()
	if err := file.Truncate(f.Size); err != nil {
		return errs.New(errs.Unavailable, "file of the snapshot: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(copyParallel)
	for n, sum := range f.Chunks {
		if sum == "" {
			continue
		}
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			b, err := chunk(ctx, sum, min(copyChunk, f.Size-int64(n)*copyChunk), o)
			if err != nil {
				return err
			}
			_, err = io.NewOffsetWriter(file, int64(n)*copyChunk).Write(b)
			return err
		})
	}
	return errors.Join(g.Wait(), file.Close())
}

// chunk returns the chunk with a sum.
func chunk(ctx context.Context, sum string, size int64, o execution.Objects) ([]byte, error) {
	packed, err := o.Get(ctx, chunkPrefix+sum)
	if errs.Is(err, errs.NotFound) {
		return nil, errs.New(errs.Corrupt, "a part of the copy is missing: %s", sum)
	}
	if err != nil {
		return nil, err
	}
	b, err := chunkDecoder.DecodeAll(packed, make([]byte, 0, size))
	if err != nil || int64(len(b)) != size || sumOf(b) != sum {
		return nil, errs.New(errs.Corrupt, "a part of the copy is damaged: %s", sum)
	}
	return b, nil
}

// DeleteSnapshotCopy implements execution.SnapshotCopier.
func (d *Driver) DeleteSnapshotCopy(ctx context.Context, o execution.Objects) error {
	// From here on there is no copy.
	if err := o.Delete(ctx, manifestKey); err != nil {
		return err
	}
	fault.Point("snapshot", "delete-copy", fault.After)
	var keys []string
	for i, err := range o.List(ctx) {
		if err != nil {
			return err
		}
		keys = append(keys, i.Key)
	}
	for _, key := range keys {
		if err := o.Delete(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

var _ execution.SnapshotCopier = (*Driver)(nil)
