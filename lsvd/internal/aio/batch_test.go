package aio

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBatchWritesKeepOrderAndOutcome makes writes to a pipe with one call, of one part and of two: they
// come in order, and each has its own outcome.
func TestBatchWritesKeepOrderAndOutcome(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for range 3 { // used again
		b := NewBatch()
		if b == nil {
			t.Skip("the kernel has no native asynchronous I/O")
		}
		var want []byte
		for i := range MaxBatch {
			if b.Full() {
				t.Fatalf("full after %d", i)
			}
			p := []byte{byte(i), byte(i >> 1)}
			fd := int(w.Fd())
			switch i {
			case 0, 7, MaxBatch - 1:
				fd = -1
			case 9:
				fd = int(r.Fd())
			default:
				want = append(want, p...)
			}
			if i%2 == 0 {
				b.Add(fd, p)
				continue
			}
			parts := []unix.Iovec{{Base: &p[0]}, {Base: &p[1]}}
			parts[0].SetLen(1)
			parts[1].SetLen(1)
			b.AddVec(fd, parts)
		}
		if !b.Full() {
			t.Fatal("not full")
		}
		said := map[int]unix.Errno{}
		b.Submit(func(i int, errno unix.Errno) {
			if _, twice := said[i]; twice {
				t.Errorf("write %d ended twice", i)
			}
			said[i] = errno
		})
		for i := range MaxBatch {
			bad := i == 0 || i == 7 || i == 9 || i == MaxBatch-1
			if errno, ok := said[i]; !ok || (errno != 0) != bad || bad && !errors.Is(errno, unix.EBADF) {
				t.Errorf("write %d ended with %v (%v)", i, errno, ok)
			}
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("read %v, %v, want %v", got, err, want)
		}
	}
}
