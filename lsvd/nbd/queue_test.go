package nbd

import (
	"bytes"
	"encoding/binary"
	"io"
	"log/slog"
	"testing"
	"time"
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

// TestBurst sends a write of whole blocks, which is queued, and after it more
// requests that have to wait for it than may be under way at once. The reader
// must not wait for room while what would make room waits for the reader.
func TestBurst(t *testing.T) {
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
		select {
		case k := <-c.replies:
			had += k
		case <-time.After(10 * time.Second):
			d.Commit() // or nothing would end
			t.Fatalf("%d of %d requests were answered", had, n)
		}
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
