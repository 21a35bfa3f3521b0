package fuse_test

import (
	"testing"
	"time"

	"miren.dev/runtime/lsvd/fuse"
)

// TestPoll ends a connection while a reader looks for requests: by the server,
// and by taking the mount away. Until then requests are answered.
func TestPoll(t *testing.T) {
	for name, unmount := range map[string]bool{"stopped": false, "unmounted": true} {
		t.Run(name, func(t *testing.T) {
			defer fuse.SetPollMost(time.Minute)() // ends only with a request, or the connection
			c := mount(t)
			disk := &memory{b: make([]byte, 1<<20)}
			stop := serve(t, c, disk)
			defer stop()
			f := open(t, c)
			until(t, func() bool {
				if fuse.Polling() {
					return true
				}
				if _, err := f.ReadAt(make([]byte, 4096), 4096); err != nil {
					t.Fatal(err)
				}
				return false
			})
			if unmount {
				if err := c.Unmount(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
