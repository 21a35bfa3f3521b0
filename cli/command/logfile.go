package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// maxLog is how large a log file of the server becomes before it is set aside.
const maxLog = 64 << 20

// boundedFile writes to a log file and, when that has grown to max, moves its
// contents to <name>.1 and begins anew. The file is open for appending, here
// and in whoever gave it to us, so emptying it is enough.
type boundedFile struct {
	mu   sync.Mutex
	f    *os.File
	size int64
	max  int64
}

// BoundedLog bounds f if it is a file; terminals and pipes are as they are.
func BoundedLog(f *os.File) io.Writer {
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return f
	}
	return &boundedFile{f: f, size: st.Size(), max: maxLog}
}

func (b *boundedFile) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.size > b.max {
		if err := b.setAside(); err != nil {
			fmt.Fprintln(b.f, "the log could not be set aside:", err)
		}
		b.size = 0 // tried again after as much
	}
	n, err := b.f.Write(p)
	b.size += int64(n)
	return n, err
}

func (b *boundedFile) setAside() error {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", b.f.Fd()))
	if err != nil {
		return err
	}
	in, err := os.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(name+".1", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close(), b.f.Truncate(0))
}
