package sshserver

import (
	"bytes"
	"context"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/pkg/sftp"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// memory is a file in memory behind the RPC interface, which counts the calls.
type memory struct {
	sandbox.FilesClient
	data  []byte
	calls int
}

func (m *memory) Stat(context.Context, *sandbox.FileRequest) (*sandbox.FileInfo, error) {
	return &sandbox.FileInfo{}, nil
}

func (m *memory) Write(_ context.Context, req *sandbox.WriteFileRequest) (rpc.ClientStream[rpc.Bytes, sandbox.FileInfo], error) {
	m.calls++
	if req.Write == sandbox.WriteModeAppend {
		return &writing{m: m, pos: int64(len(m.data))}, nil
	}
	return &writing{m: m, pos: *req.Offset}, nil
}

func (m *memory) Read(_ context.Context, req *sandbox.ReadFileRequest) (rpc.ClientStream[rpc.None, sandbox.ReadFileOutput], error) {
	m.calls++
	return &reading{m: m, pos: *req.Offset}, nil
}

type writing struct {
	rpc.ClientStream[rpc.Bytes, sandbox.FileInfo]
	m   *memory
	pos int64
}

func (w *writing) Writer() io.Writer                { return w }
func (w *writing) CloseSend() error                 { return nil }
func (w *writing) Close() error                     { return nil }
func (w *writing) Recv() (*sandbox.FileInfo, error) { return &sandbox.FileInfo{}, nil }

func (w *writing) Write(b []byte) (int, error) {
	if end := int(w.pos) + len(b); end > len(w.m.data) {
		w.m.data = append(w.m.data, make([]byte, end-len(w.m.data))...)
	}
	copy(w.m.data[w.pos:], b)
	w.pos += int64(len(b))
	return len(b), nil
}

type reading struct {
	rpc.ClientStream[rpc.None, sandbox.ReadFileOutput]
	m   *memory
	pos int64
}

func (r *reading) Close() error { return nil }

func (r *reading) Recv() (*sandbox.ReadFileOutput, error) {
	if r.pos >= int64(len(r.m.data)) {
		return nil, io.EOF
	}
	b := r.m.data[r.pos:min(r.pos+100_000, int64(len(r.m.data)))]
	r.pos += int64(len(b))
	return &sandbox.ReadFileOutput{Data: b}, nil
}

// TestSFTPRequestsMayComeOutOfOrder: requests that come about in order are one
// call; any order gives the same content.
func TestSFTPRequestsMayComeOutOfOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 20<<20+5)
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	const size = 32 << 10
	for name, around := range map[string]int{"in order": 1, "about in order": 8, "in any order": 1 << 20} {
		var offsets []int
		for o := 0; o < len(data); o += size {
			offsets = append(offsets, o)
		}
		for from := 0; from < len(offsets); from += around {
			group := offsets[from:min(from+around, len(offsets))]
			rng.Shuffle(len(group), func(i, j int) { group[i], group[j] = group[j], group[i] })
		}
		m := &memory{}
		f := &sftpFiles{ctx: t.Context(), files: m}
		w := &writer{f: f}
		for _, o := range offsets {
			if _, err := w.WriteAt(data[o:min(o+size, len(data))], int64(o)); err != nil {
				t.Fatal(err)
			}
			if w.size > window+size {
				t.Fatalf("%d bytes wait", w.size)
			}
		}
		if err := w.Close(); err != nil || !bytes.Equal(m.data, data) {
			t.Errorf("written %s: %d of %d bytes, %v", name, len(m.data), len(data), err)
		}
		if m.calls > 1 && around < 100 {
			t.Errorf("written %s with %d calls", name, m.calls)
		}
		m.calls = 0
		r := &reader{f: f}
		for _, o := range offsets {
			b := make([]byte, size)
			n, err := r.ReadAt(b, int64(o))
			if want := data[o:min(o+size, len(data))]; !bytes.Equal(b[:n], want) || (err == io.EOF) != (n < size) {
				t.Fatalf("read %s at %d: %d bytes, %v", name, o, n, err)
			}
			if len(r.buf) > 3*window {
				t.Fatalf("%d bytes are kept", len(r.buf))
			}
		}
		if m.calls > 1 && around < 100 {
			t.Errorf("read %s with %d calls", name, m.calls)
		}
		if n, err := r.ReadAt(make([]byte, 1), int64(len(data))); n != 0 || err != io.EOF {
			t.Errorf("at the end: %d, %v", n, err)
		}
	}
}

// TestSFTPAppends: clients may count positions from the end of the file that they
// saw, or from 0, and their first requests may come in any order.
func TestSFTPAppends(t *testing.T) {
	const old, size, chunk = 64 << 10, 1 << 20, 32 << 10
	rng := rand.New(rand.NewPCG(3, 4))
	data := make([]byte, old+size)
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	for name, base := range map[string]int{"from the end": old, "from 0": 0, "from an older end": old / 2} {
		for range 20 {
			m := &memory{data: append([]byte(nil), data[:old]...)}
			w := &writer{f: &sftpFiles{ctx: t.Context(), files: m}, append: true}
			var offsets []int
			for o := 0; o < size; o += chunk {
				offsets = append(offsets, o)
			}
			for from := 0; from < len(offsets); from += workers {
				group := offsets[from:min(from+workers, len(offsets))]
				rng.Shuffle(len(group), func(i, j int) { group[i], group[j] = group[j], group[i] })
			}
			if err := w.settle(); err != nil { // before there is anything to write
				t.Fatal(err)
			}
			for _, o := range offsets {
				if _, err := w.WriteAt(data[old+o:old+o+chunk], int64(base+o)); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil || !bytes.Equal(m.data, data) {
				t.Fatalf("%s: %d of %d bytes, %v", name, len(m.data), len(data), err)
			}
			if m.calls > 1 {
				t.Errorf("%s: with %d calls", name, m.calls)
			}
		}
	}
	// What was written is there before the file is closed, when it is asked for.
	m := &memory{data: data[:old:old]}
	w := &writer{f: &sftpFiles{ctx: t.Context(), files: m}, append: true}
	for i := range 3 {
		if _, err := w.WriteAt(data[old+i*chunk:old+(i+1)*chunk], int64(old+i*chunk)); err != nil {
			t.Fatal(err)
		}
		if err := w.settle(); err != nil || !bytes.Equal(m.data, data[:old+(i+1)*chunk]) {
			t.Fatalf("%d: %d bytes, %v", i, len(m.data), err)
		}
	}
}

// TestSFTPPositionsOfAClient: a position is any number of 64 bits, and one that no file has ends nothing but its request.
func TestSFTPPositionsOfAClient(t *testing.T) {
	m := &memory{data: []byte("content")}
	f := &sftpFiles{ctx: t.Context(), files: m}
	for _, offset := range []int64{-1, math.MinInt64, math.MaxInt64} {
		r := &reader{f: f}
		if n, err := r.ReadAt(make([]byte, 10), offset); n != 0 || err == nil {
			t.Errorf("read at %d: %d bytes, %v", offset, n, err)
		}
		if n, err := r.ReadAt(make([]byte, 10), 3); string(m.data[3:]) != "tent" || n != 4 || err != io.EOF {
			t.Errorf("read after %d: %d bytes, %v", offset, n, err)
		}
		w := &writer{f: f}
		if n, err := w.WriteAt([]byte("x"), offset); n != 0 || err == nil {
			t.Errorf("written at %d: %d bytes, %v", offset, n, err)
		}
	}
}

// TestSFTPOpenFiles: a session has a bounded number of files open, to read or to write, since each has a window.
func TestSFTPOpenFiles(t *testing.T) {
	f := &sftpFiles{ctx: t.Context(), files: &memory{data: []byte("content")}, open: map[io.Closer]struct{}{}}
	read, write := sftp.NewRequest("Get", "/f"), sftp.NewRequest("Put", "/f")
	var open []io.Closer
	for i := range maxOpen {
		var file any
		var err error
		if i%2 == 0 {
			file, err = f.Fileread(read)
		} else {
			file, err = f.Filewrite(write)
		}
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, file.(io.Closer))
	}
	for range 2 * len(open) {
		if _, err := f.Fileread(read); !errs.Is(err, errs.ResourceExhausted) {
			t.Fatalf("one file more to read: %v", err)
		}
		if _, err := f.Filewrite(write); !errs.Is(err, errs.ResourceExhausted) {
			t.Fatalf("one file more to write: %v", err)
		}
	}
	for _, file := range open {
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		_ = file.Close() // a file counts once
	}
	for range maxOpen {
		if _, err := f.Fileread(read); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.Fileread(read); !errs.Is(err, errs.ResourceExhausted) {
		t.Errorf("one file more: %v", err)
	}
}

// TestSFTPScatteredWrites: what waits takes a bounded memory, however small its parts are.
func TestSFTPScatteredWrites(t *testing.T) {
	for name, part := range map[string][]byte{"empty": {}, "a byte": {'x'}} {
		m := &memory{}
		w := &writer{f: &sftpFiles{ctx: t.Context(), files: m}}
		for i := range 3 * maxWaiting {
			if _, err := w.WriteAt(part, int64(2*i+1)); err != nil {
				t.Fatal(err)
			}
			if len(w.waiting) > maxWaiting {
				t.Fatalf("%s: %d writes wait", name, len(w.waiting))
			}
		}
		if err := w.Close(); err != nil || len(w.waiting) > 0 || len(part) > 0 && len(m.data) != 6*maxWaiting {
			t.Errorf("%s: %d writes wait, %d bytes are written, %v", name, len(w.waiting), len(m.data), err)
		}
	}
}

// TestSFTPHome: a program of the sandbox that writes without end does not fill the memory of the gateway.
func TestSFTPHome(t *testing.T) {
	code := int64(0)
	for want, list := range map[string][]sandbox.ExecOutput{
		"/app": {{Stdout: []byte("/a")}, {Stdout: []byte("pp\n")}, {ExitCode: &code}},
		"/":    {{Stdout: []byte("/" + strings.Repeat("x", 1<<20))}, {Stdout: []byte("\n")}, {ExitCode: &code}},
	} {
		if got := readHome(&outputs{list: list}); got != want {
			t.Errorf("%.20q of %d bytes, want %q", got, len(got), want)
		}
	}
}
