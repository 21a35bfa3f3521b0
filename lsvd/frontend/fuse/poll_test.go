package fuse_test

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/frontend/fuse"
	dirstore "miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/testsupport/wait"
)

// TestPollingReaderEndsWithConnection ends a connection while a reader looks for requests: by the server,
// and by taking the mount away. Until then requests are answered.
func TestPollingReaderEndsWithConnection(t *testing.T) {
	for name, unmount := range map[string]bool{"stopped": false, "unmounted": true} {
		t.Run(name, func(t *testing.T) {
			defer fuse.SetPollMost(time.Minute)() // ends only with a request, or the connection
			c := mount(t)
			disk := &memory{b: make([]byte, 1<<20)}
			stop := serve(t, c, disk)
			defer stop()
			f := open(t, c)
			wait.For(t, "a reader polls", func() bool {
				if fuse.Polling() {
					return true
				}
				if _, err := f.ReadAt(make([]byte, 4096), 4096); err != nil {
					t.Fatal(err)
				}
				return false
			}, wait.Every(time.Millisecond))
			if unmount {
				if err := c.Unmount(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestPollingReaderCollectsCompletions reads blocks of a local store, by a few at a time, with
// writes now and then: whoever looks for requests takes what has completed, and
// nobody does any more when the connection has ended.
func TestPollingReaderCollectsCompletions(t *testing.T) {
	const size = 32 << 20
	dir, err := dirstore.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d := volume(t, dir, size, lsvd.Options{CacheBytes: 4 << 20})()
	defer d.Close(t.Context())
	data := pages(t, size)
	rand.NewChaCha8([32]byte{5}).Read(data)
	if err := d.WriteAt(t.Context(), data, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := d.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := mount(t)
	stop := sync.OnceFunc(serve(t, c, d))
	defer stop()
	f := open(t, c)
	var enough atomic.Bool
	var wg sync.WaitGroup
	for g := range 4 {
		rng := rand.New(rand.NewPCG(uint64(g), 7))
		wg.Go(func() {
			p := make([]byte, 4096)
			for n := 0; !enough.Load() || n < 2000; n++ {
				off := rng.Int64N(size/4096) * 4096
				if n%100 == 99 {
					if _, err := f.WriteAt(data[off:][:4096], off); err != nil {
						t.Error(err)
						return
					}
				}
				if _, err := f.ReadAt(p, off); err != nil || !bytes.Equal(p, data[off:][:4096]) {
					t.Errorf("block at %d differs: %v", off, err)
					return
				}
			}
		})
	}
	wait.For(t, "a reader polls", fuse.Polling, wait.Every(time.Millisecond))
	enough.Store(true)
	wg.Wait()
	stop()
	if fuse.Polling() {
		t.Error("somebody looks for requests of a connection that has ended")
	}
}
