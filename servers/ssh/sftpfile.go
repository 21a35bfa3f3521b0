package sshserver

import (
	"io"
	"math"
	"sync"

	"github.com/pkg/sftp"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// window bounds the bytes of an open file that are kept because requests come
// out of order, and maxWaiting the writes that wait. The SFTP server works on as many
// as workers at a time.
const (
	window     = 4 << 20
	maxWaiting = 1024
	workers    = sftp.SftpServerWorkerCount
)

// firstRequests is the length of the part of a file that the first requests read,
// in any order: a call for one of them begins with the file.
const firstRequests = 256 << 10

// checkPosition refuses a request for n bytes at a position that no file has. The SFTP
// server passes on what the client sent, as a signed number.
func checkPosition(offset int64, n int) error {
	if offset < 0 || offset > math.MaxInt64-int64(n) {
		return errs.New(errs.InvalidArgument, "no file has the position %d", uint64(offset))
	}
	return nil
}

// reader reads a file with one call, from which requests take what they ask for,
// as long as they go on about where the last ones ended.
type reader struct {
	f    *sftpFiles
	path string

	mu    sync.Mutex
	st    rpc.ClientStream[rpc.None, sandbox.ReadFileOutput]
	buf   []byte // bytes before pos that were received
	pos   int64  // position in the file of the next byte of the call
	ended bool   // pos is the end of the file
}

// ReadAt implements io.ReaderAt.
func (r *reader) ReadAt(b []byte, offset int64) (int, error) {
	if err := checkPosition(offset, len(b)); err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if offset < r.pos-int64(len(r.buf)) || offset > r.pos+window || r.st == nil {
		if err := r.open(offset); err != nil {
			return 0, sftpError(err)
		}
	}
	for r.pos < offset+int64(len(b)) && !r.ended {
		m, err := r.st.Recv()
		if err == io.EOF {
			r.ended = true
			break
		}
		if err != nil {
			return 0, sftpError(err)
		}
		r.buf = append(r.buf, m.Data...)
		r.pos += int64(len(m.Data))
	}
	begin := r.pos - int64(len(r.buf))
	if offset >= r.pos {
		return 0, io.EOF
	}
	n := copy(b, r.buf[offset-begin:])
	if excess := len(r.buf) - window; excess > window/4 { // not for every request
		r.buf = append(r.buf[:0], r.buf[excess:]...)
	}
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// open begins a call at a position, or before it.
func (r *reader) open(offset int64) error {
	_ = r.closeLocked() // one that reads elsewhere
	if offset < firstRequests {
		offset = 0
	}
	st, err := r.f.files.Read(r.f.ctx, &sandbox.ReadFileRequest{Sandbox: r.f.sandbox, Path: r.path, Offset: &offset})
	if err != nil {
		return err
	}
	r.st, r.buf, r.pos, r.ended = st, r.buf[:0], offset, false
	return nil
}

func (r *reader) closeLocked() error {
	if r.st == nil {
		return nil
	}
	err := r.st.Close()
	r.st = nil
	return err
}

// Close ends the call.
func (r *reader) Close() error {
	r.f.forget(r)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closeLocked()
}

// writer writes a file with one call, as long as what comes out of order fits
// into the window.
//
// With append the content goes to the end of the file. Some clients then count
// positions from the end that they saw, others from 0: the first position is the
// lowest one of the first requests.
type writer struct {
	f      *sftpFiles
	path   string
	append bool

	mu      sync.Mutex
	begun   bool // with append: pos is known
	st      rpc.ClientStream[rpc.Bytes, sandbox.FileInfo]
	pos     int64            // position in the file of the next byte of the call
	waiting map[int64][]byte // by position, after pos
	size    int              // bytes of waiting
	err     error            // of a request that was answered already
}

// WriteAt implements io.WriterAt. A request that waits for others is answered at
// once; its failure is the answer of a later one, or of Close.
func (w *writer) WriteAt(b []byte, offset int64) (int, error) {
	if err := checkPosition(offset, len(b)); err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	if w.waiting == nil {
		w.waiting = map[int64][]byte{}
	}
	w.size += len(b) - len(w.waiting[offset])
	w.waiting[offset] = append([]byte(nil), b...)
	if w.err = w.flush(w.size > window || len(w.waiting) >= maxWaiting); w.err != nil {
		return 0, w.err
	}
	return len(b), nil
}

// flush writes what goes on at pos, and with all set the rest too.
func (w *writer) flush(all bool) error {
	if w.append && !w.begun {
		if _, zero := w.waiting[0]; len(w.waiting) == 0 || !zero && !all && len(w.waiting) <= workers {
			return nil
		}
		w.pos, w.begun = w.lowest(), true
	}
	for len(w.waiting) > 0 {
		b, ok := w.waiting[w.pos]
		if !ok || w.st == nil {
			if !ok && !all {
				return nil
			}
			if !ok {
				if err := w.commit(); err != nil {
					return err
				}
				w.pos = w.lowest()
				b = w.waiting[w.pos]
			}
			if err := w.open(); err != nil {
				return sftpError(err)
			}
		}
		if _, err := w.st.Writer().Write(b); err != nil {
			return w.fail(err)
		}
		delete(w.waiting, w.pos)
		w.size -= len(b)
		w.pos += int64(len(b))
	}
	return nil
}

// lowest returns the first position that waits.
func (w *writer) lowest() int64 {
	first := int64(-1)
	for p := range w.waiting {
		if first < 0 || p < first {
			first = p
		}
	}
	return first
}

// open begins a call at pos.
func (w *writer) open() error {
	req := &sandbox.WriteFileRequest{Sandbox: w.f.sandbox, Path: w.path, Write: sandbox.WriteModeAppend}
	if !w.append {
		pos := w.pos
		req.Write, req.Offset = sandbox.WriteModeAt, &pos
	}
	st, err := w.f.files.Write(w.f.ctx, req)
	w.st = st
	return err
}

// fail returns the reason why a call has ended.
func (w *writer) fail(err error) error {
	if err == io.EOF {
		if _, rerr := w.st.Recv(); rerr != nil {
			err = rerr
		}
	}
	_ = w.st.Close()
	w.st = nil
	return sftpError(err)
}

// commit ends the call, and waits until everything is written.
func (w *writer) commit() error {
	if w.st == nil {
		return nil
	}
	if err := w.st.CloseSend(); err != nil {
		return w.fail(err)
	}
	if _, err := w.st.Recv(); err != nil {
		return w.fail(err)
	}
	err := w.st.Close()
	w.st = nil
	return err
}

// Close writes the rest. Its error is the answer of the client's close.
func (w *writer) Close() error {
	w.f.forget(w)
	return w.settle()
}

// settle writes the rest; more may follow.
func (w *writer) settle() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	if w.err = w.flush(true); w.err == nil {
		w.err = w.commit()
	}
	return w.err
}
