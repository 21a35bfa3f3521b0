package nbd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/testsupport/wait"
)

// burst is a connection on which everything that a client will ever send comes
// at once.
type burst struct {
	in      io.Reader
	replies chan int
	ended   chan struct{}
}

func (b *burst) Read(p []byte) (int, error) {
	n, err := b.in.Read(p)
	if err == io.EOF {
		<-b.ended // the client waits for replies
	}
	return n, err
}

func (b *burst) Writev(vec [][]byte) error {
	n := 0
	for _, p := range vec {
		n += len(p)
	}
	b.replies <- n / 16
	return nil
}

func (b *burst) Close() error { return nil }

// TestQueuedWriteBeforeBurstIsCarriedOut sends a write of whole blocks, which is queued, and after it more
// requests that have to wait for it than may be under way at once. The reader
// must not wait for room while what would make room waits for the reader.
func TestQueuedWriteBeforeBurstIsCarriedOut(t *testing.T) {
	_, d := serveDisk(t)
	var in []byte
	request := func(off uint64, data []byte) {
		in = binary.BigEndian.AppendUint32(in, magicRequest)
		in = binary.BigEndian.AppendUint16(in, 0)
		in = binary.BigEndian.AppendUint16(in, cmdWrite)
		in = binary.BigEndian.AppendUint64(in, off)
		in = binary.BigEndian.AppendUint64(in, off)
		in = binary.BigEndian.AppendUint32(in, uint32(len(data)))
		in = append(in, data...)
	}
	request(0, bytes.Repeat([]byte{1}, 4096))
	n := 1
	for ; n <= 2*maxInFlight; n++ {
		request(uint64(4096*n+512), bytes.Repeat([]byte{byte(n)}, 512))
	}
	c := &burst{in: bytes.NewReader(in), replies: make(chan int, n), ended: make(chan struct{})}
	x := &session{s: New(slog.New(slog.DiscardHandler)), export: Export{Name: "disk", Disk: d}}
	done := make(chan error, 1)
	go func() { done <- x.transmit(t.Context(), c, nil) }()
	for had := 0; had < n; {
		had += wait.Receive(t, "replies", c.replies, wait.State(func() any {
			d.Commit() // or nothing would end
			return fmt.Sprintf("%d of %d requests were answered", had, n)
		}))
	}
	close(c.ended)
	if err := <-done; err != nil {
		t.Error(err)
	}
	got := make([]byte, 4096*n+1024)
	if err := d.ReadAt(t.Context(), got, 0); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < n; i++ {
		if !bytes.Equal(got[4096*i+512:][:512], bytes.Repeat([]byte{byte(i)}, 512)) {
			t.Fatalf("write %d is not there", i)
		}
	}
}

// halves is a disk that ends half of the reads of a batch before ReadBatch returns; every tenth
// block is broken.
type halves struct {
	lsvd.Disk
	mu    sync.Mutex
	begun int // at once, at most
	told  atomic.Int64
}

func (d *halves) Size() int64 { return 1 << 30 }

func (d *halves) ReadAt(_ context.Context, p []byte, off int64) error {
	for i := range p {
		p[i] = byte(off / 4096)
	}
	if off/4096%10 == 9 {
		return errors.New("broken")
	}
	return nil
}

func (d *halves) ReadBatch(ctx context.Context, reads []lsvd.Read) {
	d.mu.Lock()
	d.begun = max(d.begun, len(reads))
	d.mu.Unlock()
	end := func(reads []lsvd.Read) {
		for i, r := range reads {
			r.Completion.Done(d.ReadAt(ctx, r.P, r.Off), i+1 < len(reads))
		}
		for _, r := range reads {
			r.Completion.BatchDone()
			d.told.Add(1)
		}
	}
	end(reads[:len(reads)/2])
	go end(reads[len(reads)/2:])
}

// slowClient is a connection whose client sends all at once, and takes replies
// once it is told to.
type slowClient struct {
	in    io.Reader
	start chan struct{}
	out   bytes.Buffer
	want  int
	ended chan struct{}
}

func (c *slowClient) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	if err == io.EOF {
		<-c.ended
	}
	return n, err
}

func (c *slowClient) Writev(vec [][]byte) error {
	<-c.start
	for _, p := range vec {
		c.out.Write(p)
	}
	if c.out.Len() >= c.want {
		close(c.ended)
	}
	return nil
}

func (c *slowClient) Close() error { return nil }

// TestBatchedReads sends many small reads at once, to a client that takes no
// replies for a while: whoever tells of reads is not kept waiting by it, and
// each is answered with what is there, or its error.
func TestBatchedReads(t *testing.T) {
	for _, structured := range []bool{false, true} {
		const n = 90
		var in []byte
		want := 0
		for i := range uint64(n) {
			in = binary.BigEndian.AppendUint32(in, magicRequest)
			in = binary.BigEndian.AppendUint32(in, cmdRead)
			in = binary.BigEndian.AppendUint64(in, i)
			in = binary.BigEndian.AppendUint64(in, i*4096)
			in = binary.BigEndian.AppendUint32(in, uint32(4096*(1+i%4)))
			switch fails := i%10 == 9; {
			case structured && fails:
				want += 20 + 6
			case structured:
				want += 20 + 8 + 4096*int(1+i%4)
			case fails:
				want += 16
			default:
				want += 16 + 4096*int(1+i%4)
			}
		}
		d := &halves{}
		c := &slowClient{in: bytes.NewReader(in), start: make(chan struct{}), want: want, ended: make(chan struct{})}
		x := &session{s: New(slog.New(slog.DiscardHandler)), export: Export{Name: "disk", Disk: d}, structured: structured}
		done := make(chan error, 1)
		go func() { done <- x.transmit(t.Context(), c, nil) }()
		for deadline := time.Now().Add(10 * time.Second); d.told.Load() == 0; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatal("who tells of reads waits for the client")
			}
		}
		close(c.start)
		wait.Receive(t, "all answers", c.ended)
		if err := <-done; err != nil {
			t.Error(err)
		}
		b := c.out.Bytes()
		seen := map[uint64]bool{}
		for len(b) > 0 {
			i, code := binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint32(b[4:])
			seen[i] = true
			size := 4096 * int(1+i%4)
			fails := i%10 == 9
			switch {
			case structured && fails:
				if typ := binary.BigEndian.Uint16(b[6:]); typ != chunkError {
					t.Fatalf("read %d: chunk %x", i, typ)
				}
				b = b[26:]
				continue
			case structured:
				b = b[28:]
			case fails:
				if code != nbdEIO {
					t.Fatalf("read %d: %d", i, code)
				}
				b = b[16:]
				continue
			default:
				b = b[16:]
			}
			if !bytes.Equal(b[:size], bytes.Repeat([]byte{byte(i)}, size)) {
				t.Fatalf("read %d differs", i)
			}
			b = b[size:]
		}
		if len(seen) != n || d.begun < 2 {
			t.Errorf("%d of %d reads were answered, %d were begun at once", len(seen), n, d.begun)
		}
	}
}

// commits tells of each Commit.
type commits chan struct{}

func (c commits) Queue([]byte, int64, lsvd.Completion) bool { return true }
func (c commits) Commit()                                   { c <- struct{}{} }

// TestCommitsBeforeClientReads has writes carried out though the client takes no replies.
func TestCommitsBeforeClientReads(t *testing.T) {
	c := &slowClient{start: make(chan struct{}), ended: make(chan struct{})}
	disk := make(commits, 1)
	l := &link{disk: disk, out: &replies{c: c, budget: newBudget()}}
	l.out.put(&request{}, make([]byte, 16), nil)
	done := make(chan struct{})
	go func() { l.carryOut(t.Context(), pending{writes: true}); close(done) }()
	wait.Receive(t, "writes are carried out before the client reads", disk)
	close(c.start)
	<-done
	if c.out.Len() != 16 {
		t.Errorf("%d bytes were sent", c.out.Len())
	}
}
