package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"miren.dev/runtime/pkg/errs"
)

// maxLog is the size in bytes at which a log file of the server is rotated.
const maxLog = 64 << 20

// boundedFile writes to a log file and, when that has grown to max, copies it to
// <name>.1 and truncates it. Every process that writes the file has opened it
// for appending, so that truncation is enough.
type boundedFile struct {
	mu   sync.Mutex
	f    *os.File
	in   *os.File // the same, for reading
	old  *os.File // <name>.1
	err  error    // why it cannot be rotated
	size int64
	max  int64
}

// BoundedLog returns a writer to f that rotates it if it is a file; terminals and
// pipes are written as they are. It opens here what it needs later: a process
// that gives up its privileges can rotate its log.
func BoundedLog(f *os.File) io.Writer { return boundedLog(f, maxLog) }

// OpenLog opens a log file, or makes it, and rotates it at max bytes.
func OpenLog(path string, max int64) (io.Writer, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "directory of the log: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "log: %w", err)
	}
	return boundedLog(f, max), nil
}

func boundedLog(f *os.File, max int64) io.Writer {
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return f
	}
	b := &boundedFile{f: f, size: st.Size(), max: max}
	b.err = b.open()
	return b
}

func (b *boundedFile) open() error {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", b.f.Fd()))
	if err != nil {
		return err
	}
	if b.in, err = os.Open(name); err != nil {
		return err
	}
	b.old, err = os.OpenFile(name+".1", os.O_CREATE|os.O_WRONLY, 0o640)
	return err
}

func (b *boundedFile) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.size > b.max {
		if err := b.rotate(); err != nil {
			fmt.Fprintln(b.f, "the log cannot be rotated:", err)
		}
		b.size = 0 // try again after as many further bytes
	}
	n, err := b.f.Write(p)
	b.size += int64(n)
	return n, err
}

func (b *boundedFile) rotate() error {
	if b.err != nil {
		return b.err
	}
	for _, f := range []*os.File{b.in, b.old} {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	if err := b.old.Truncate(0); err != nil {
		return err
	}
	_, err := io.Copy(b.old, b.in)
	return errors.Join(err, b.f.Truncate(0))
}
