//go:build !unix

package attach

import (
	"os"
	"sync"
	"syscall"
	"time"
)

// forwarded are the signals that go to the remote process, with their numbers
// on Linux. Windows reports Ctrl-C as the first and a closed console as the second.
var forwarded = map[os.Signal]int64{syscall.SIGINT: 2, syscall.SIGTERM: 15}

// sizeInterval is how often the size of the terminal is read.
const sizeInterval = 250 * time.Millisecond

// resizes returns a channel that receives when the size of the terminal has
// changed, until stop is called. On this system no signal reports a change.
func resizes(size func() (cols, rows int64)) (changed <-chan os.Signal, stop func()) {
	ch, ended := make(chan os.Signal, 1), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(sizeInterval)
		defer tick.Stop()
		cols, rows := size()
		for {
			select {
			case <-tick.C:
			case <-ended:
				return
			}
			c, r := size()
			if c == cols && r == rows {
				continue
			}
			cols, rows = c, r
			select {
			case ch <- syscall.Signal(0):
			default: // the receiver reads the size anyway
			}
		}
	})
	return ch, func() { close(ended); wg.Wait() }
}
