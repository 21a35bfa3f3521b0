package agent

import (
	"bufio"
	"context"
	"io"
	"io/fs"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sandboxfs"
)

// Files are the files of the sandbox.
func (c *Conn) Files(v sandboxfs.View) *Files {
	return &Files{c: c, v: agentproto.View{User: v.User, Roots: v.Roots}}
}

// Files implements sandboxfs.FS.
type Files struct {
	c *Conn
	v agentproto.View
}

var _ sandboxfs.FS = (*Files)(nil)

// Read is sandboxfs.FS's.
func (f *Files) Read(ctx context.Context, path string, offset, length int64) (sandboxfs.Reader, error) {
	m := agentproto.FileRead{View: f.v, Path: path, Offset: offset, Length: length}
	ch, err := f.c.open(ctx, agentproto.Open{Kind: agentproto.KindRead, Lifetime: agentproto.LifeLinger, Params: m.Append(nil)})
	if err != nil {
		return nil, err
	}
	info, err := agentproto.DecodeFileInfo(ch.info)
	if err != nil {
		ch.close()
		return nil, errs.New(errs.Internal, "description of a file of %s: %w", f.c.id, err)
	}
	r := &fileReader{ch: ch, content: ch.out, info: fileInfo(info)}
	if length > 0 {
		r.content = io.LimitReader(ch.out, length) // an agent may send more
	}
	return r, nil
}

type fileReader struct {
	ch      *channel
	content io.Reader
	info    sandboxfs.Info
}

func (r *fileReader) Info() sandboxfs.Info       { return r.info }
func (r *fileReader) Read(b []byte) (int, error) { return r.content.Read(b) }

func (r *fileReader) Close() error {
	r.ch.close()
	return nil
}

// Write is sandboxfs.FS's.
func (f *Files) Write(ctx context.Context, path string, o sandboxfs.WriteOptions) (sandboxfs.Writer, error) {
	m := agentproto.FileWrite{
		View: f.v, Path: path, Mode: agentproto.WriteMode(o.Mode), Offset: o.Offset, Perm: uint64(sandboxfs.Bits(o.Perm)), Parents: o.Parents,
	}
	ch, err := f.c.open(ctx, agentproto.Open{Kind: agentproto.KindWrite, Lifetime: agentproto.LifeLinger, Params: m.Append(nil)})
	if err != nil {
		return nil, err
	}
	return &fileWriter{ch}, nil
}

// Watch is sandboxfs.FS's.
func (f *Files) Watch(ctx context.Context, path string, recursive bool) (sandboxfs.Watcher, error) {
	m := agentproto.FileOp{View: f.v, Path: path, Recursive: recursive}
	ch, err := f.c.open(ctx, agentproto.Open{Kind: agentproto.KindWatch, Lifetime: agentproto.LifeLinger, Params: m.Append(nil)})
	if err != nil {
		return nil, err
	}
	return &fileWatcher{ch: ch, r: bufio.NewReader(ch.out)}, nil
}

type fileWatcher struct {
	ch *channel
	r  *bufio.Reader
}

var fileChanges = map[agentproto.FileChange]sandboxfs.Change{
	agentproto.FileCreated: sandboxfs.Created, agentproto.FileWritten: sandboxfs.Written, agentproto.FileRemoved: sandboxfs.Removed,
	agentproto.FileAttributes: sandboxfs.Attributes, agentproto.FilesMissed: sandboxfs.Missed,
}

func (w *fileWatcher) Next() (sandboxfs.Event, error) {
	e, err := agentproto.ReadFileEvent(w.r)
	if err != nil {
		return sandboxfs.Event{}, err
	}
	return sandboxfs.Event{Change: fileChanges[e.Op], Path: e.Path, Dir: e.Dir}, nil
}

func (w *fileWatcher) Close() error {
	w.ch.close()
	return nil
}

type fileWriter struct{ ch *channel }

// Archive is sandboxfs.FS's.
func (f *Files) Archive(ctx context.Context, path string) (io.ReadCloser, error) {
	m := agentproto.FileOp{View: f.v, Path: path}
	ch, err := f.c.open(ctx, agentproto.Open{Kind: agentproto.KindArchive, Lifetime: agentproto.LifeLinger, Params: m.Append(nil)})
	if err != nil {
		return nil, err
	}
	return &fileReader{ch: ch, content: ch.out}, nil
}

// Extract is sandboxfs.FS's.
func (f *Files) Extract(ctx context.Context, path string) (sandboxfs.Extractor, error) {
	m := agentproto.FileOp{View: f.v, Path: path, Recursive: true}
	ch, err := f.c.open(ctx, agentproto.Open{Kind: agentproto.KindExtract, Lifetime: agentproto.LifeLinger, Params: m.Append(nil)})
	if err != nil {
		return nil, err
	}
	return extractor{&fileWriter{ch}}, nil
}

type extractor struct{ *fileWriter }

func (x extractor) Finish(ctx context.Context) error {
	_ = x.ch.in.Close() // it cannot fail
	_, err := x.ch.wait(ctx)
	return err
}

// Write fails when the file cannot be written; Commit then says why.
func (w *fileWriter) Write(b []byte) (int, error) {
	n, err := w.ch.in.Write(b)
	if err == io.ErrClosedPipe {
		select {
		case <-w.ch.ended:
			if _, why := w.ch.outcome(); why != nil {
				err = why
			}
		default:
		}
	}
	return n, err
}

func (w *fileWriter) Commit(ctx context.Context) (sandboxfs.Info, error) {
	_ = w.ch.in.Close() // it cannot fail
	b, err := w.ch.wait(ctx)
	if err != nil {
		return sandboxfs.Info{}, err
	}
	info, err := agentproto.DecodeFileInfo(b)
	if err != nil {
		return sandboxfs.Info{}, errs.New(errs.Internal, "description of a file of %s: %w", w.ch.c.id, err)
	}
	return fileInfo(info), nil
}

func (w *fileWriter) Close() error {
	w.ch.close()
	return nil
}

func (f *Files) do(ctx context.Context, m agentproto.FileOp) ([]byte, error) {
	m.View = f.v
	return f.c.request(ctx, agentproto.KindFile, m)
}

func (f *Files) infos(ctx context.Context, m agentproto.FileOp) (agentproto.FileInfos, error) {
	b, err := f.do(ctx, m)
	if err != nil {
		return agentproto.FileInfos{}, err
	}
	l, err := agentproto.DecodeFileInfos(b)
	if err != nil {
		return l, errs.New(errs.Internal, "list of files of %s: %w", f.c.id, err)
	}
	return l, nil
}

// Stat is sandboxfs.FS's.
func (f *Files) Stat(ctx context.Context, path string) (sandboxfs.Info, error) {
	l, err := f.infos(ctx, agentproto.FileOp{Op: agentproto.OpStat, Path: path})
	if err != nil {
		return sandboxfs.Info{}, err
	}
	if len(l.Files) != 1 {
		return sandboxfs.Info{}, errs.New(errs.Internal, "description of a file of %s: %d of them", f.c.id, len(l.Files))
	}
	return fileInfo(l.Files[0]), nil
}

// List is sandboxfs.FS's.
func (f *Files) List(ctx context.Context, path string, o sandboxfs.ListOptions) ([]sandboxfs.Info, bool, error) {
	l, err := f.infos(ctx, agentproto.FileOp{Op: agentproto.OpList, Path: path, After: o.After, Limit: uint64(max(0, o.Limit)), Recursive: o.Attrs})
	var list []sandboxfs.Info
	for _, i := range l.Files {
		list = append(list, fileInfo(i))
	}
	return list, l.More, err
}

// Move is sandboxfs.FS's.
func (f *Files) Move(ctx context.Context, from, to string, replace bool) error {
	_, err := f.do(ctx, agentproto.FileOp{Op: agentproto.OpMove, Path: from, To: to, Recursive: replace})
	return err
}

// Copy is sandboxfs.FS's.
func (f *Files) Copy(ctx context.Context, from, to string) error {
	_, err := f.do(ctx, agentproto.FileOp{Op: agentproto.OpCopy, Path: from, To: to, Recursive: true})
	return err
}

// Remove is sandboxfs.FS's.
func (f *Files) Remove(ctx context.Context, path string, recursive bool) error {
	_, err := f.do(ctx, agentproto.FileOp{Op: agentproto.OpRemove, Path: path, Recursive: recursive})
	return err
}

// Mkdir is sandboxfs.FS's.
func (f *Files) Mkdir(ctx context.Context, path string, perm fs.FileMode, parents bool) error {
	_, err := f.do(ctx, agentproto.FileOp{Op: agentproto.OpMkdir, Path: path, Perm: uint64(sandboxfs.Bits(perm)), Recursive: parents})
	return err
}

// Chmod is sandboxfs.FS's.
func (f *Files) Chmod(ctx context.Context, path string, perm fs.FileMode) error {
	_, err := f.do(ctx, agentproto.FileOp{Op: agentproto.OpChmod, Path: path, Perm: uint64(sandboxfs.Bits(perm))})
	return err
}

// Attrs is sandboxfs.FS's.
func (f *Files) Attrs(ctx context.Context, path string) (map[string][]byte, error) {
	b, err := f.do(ctx, agentproto.FileOp{Op: agentproto.OpAttrs, Path: path})
	if err != nil {
		return nil, err
	}
	l, err := agentproto.DecodeStrings(b)
	if err != nil || len(l)%2 != 0 {
		return nil, errs.New(errs.Internal, "attributes of a file of %s: malformed", f.c.id)
	}
	return fileAttrs(l), nil
}

// fileAttrs returns the attributes of a list of names and values.
func fileAttrs(l []string) map[string][]byte {
	attrs := map[string][]byte{}
	for i := 0; i+1 < len(l); i += 2 {
		attrs[l[i]] = []byte(l[i+1])
	}
	return attrs
}

// SetAttr is sandboxfs.FS's.
func (f *Files) SetAttr(ctx context.Context, path, name string, value []byte) error {
	_, err := f.do(ctx, agentproto.FileOp{Op: agentproto.OpSetAttr, Path: path, To: name, Value: value, Recursive: value != nil})
	return err
}

// Symlink is sandboxfs.FS's.
func (f *Files) Symlink(ctx context.Context, target, path string) error {
	_, err := f.do(ctx, agentproto.FileOp{Op: agentproto.OpSymlink, Path: path, To: target})
	return err
}

// Link is sandboxfs.FS's.
func (f *Files) Link(ctx context.Context, from, to string) error {
	_, err := f.do(ctx, agentproto.FileOp{Op: agentproto.OpLink, Path: from, To: to})
	return err
}

// Chtimes is sandboxfs.FS's.
func (f *Files) Chtimes(ctx context.Context, path string, accessed, modified time.Time) error {
	for _, t := range []time.Time{accessed, modified} {
		if !time.Unix(0, t.UnixNano()).Equal(t) { // before 1678, or after 2262
			return errs.New(errs.InvalidArgument, "no file has the time %s", t)
		}
	}
	_, err := f.do(ctx, agentproto.FileOp{Op: agentproto.OpTimes, Path: path, Accessed: accessed.UnixNano(), Modified: modified.UnixNano()})
	return err
}

// Truncate is sandboxfs.FS's.
func (f *Files) Truncate(ctx context.Context, path string, size int64) error {
	_, err := f.do(ctx, agentproto.FileOp{Op: agentproto.OpTruncate, Path: path, Size: size})
	return err
}

// Space is sandboxfs.FS's.
func (f *Files) Space(ctx context.Context, path string) (sandboxfs.Space, error) {
	b, err := f.do(ctx, agentproto.FileOp{Op: agentproto.OpSpace, Path: path})
	if err != nil {
		return sandboxfs.Space{}, err
	}
	m, err := agentproto.DecodeFileSpace(b)
	if err != nil {
		return sandboxfs.Space{}, errs.New(errs.Internal, "room of a file system of %s: %w", f.c.id, err)
	}
	n := func(v uint64) int64 { return int64(min(v, math.MaxInt64)) }
	return sandboxfs.Space{Bytes: n(m.Bytes), FreeBytes: n(m.FreeBytes), Files: n(m.Files), FreeFiles: n(m.FreeFiles)}, nil
}

var fileTypes = map[uint32]fs.FileMode{
	unix.S_IFREG: 0, unix.S_IFDIR: fs.ModeDir, unix.S_IFLNK: fs.ModeSymlink, unix.S_IFIFO: fs.ModeNamedPipe,
	unix.S_IFSOCK: fs.ModeSocket, unix.S_IFBLK: fs.ModeDevice, unix.S_IFCHR: fs.ModeDevice | fs.ModeCharDevice,
}

func fileInfo(m agentproto.FileInfo) sandboxfs.Info {
	mode, ok := fileTypes[uint32(m.Mode)&unix.S_IFMT]
	if !ok {
		mode = fs.ModeIrregular
	}
	mode |= sandboxfs.Perm(uint32(m.Mode))
	i := sandboxfs.Info{
		Name: m.Name, Mode: mode, Size: m.Size, ModTime: time.Unix(0, m.ModTime), UID: int(m.UID), GID: int(m.GID), Target: m.Target,
	}
	if len(m.Attrs) > 0 {
		i.Attrs = fileAttrs(m.Attrs)
	}
	return i
}
